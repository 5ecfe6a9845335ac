// The gated delta rule, token by token (zinc.ops.recurrent). COLS columns (group.y) of the state of one
// value head (group.x) of one sequence (group.z) stay in registers. SHARE lanes share a column: each
// holds every SHARE-th float4 of its rows. q and k are normalised into shared memory, ROWS tokens at a
// time, while the next tokens are prefetched. The state S is stored transposed, [value heads, V_DIM,
// K_DIM]; with ROLLBACK, that of delta_slot.cuh.
//   SSM       the scan of Mamba-2 (zinc.ops.ssm): d = dt v, without a correction, and skip v is
//             added
//   PART      the part of the rows that the kernel processes (delta_parts.cuh)
//   CHANNELS  each row of S has a decay, which is staged like q and k
//   FLOOR     decays have a lower bound

#include "arguments.h"

using Arguments = DeltaRuleArguments;

#ifndef CHANNELS
#define CHANNELS 0
#endif
#ifndef FLOOR
#define FLOOR 0
#endif

#include "step.cuh"
#include "activation.cuh"
#include "decay.cuh"
#include "delta_parts.cuh"
#include "delta_rows.cuh"
#include "floats.cuh"

#define THREADS (COLS * SHARE)
#define FOURS (K_DIM / (4 * SHARE))
#define EIGHTS (THREADS / 8) // groups of eight lanes, each of which normalises a head
#define PARTS (2 + CHANNELS) // q, k, and alpha if each channel has its own
#define HEADS_EACH ((PARTS * ROWS + EIGHTS - 1) / EIGHTS) // heads of the parts for each group
#define VALUES_EACH ((ROWS * COLS + THREADS - 1) / THREADS)
#define EIGHTH ((K_DIM + 31) / 32) // float4s of a head for one of the eight lanes
#define L2_EPS 1e-6f
#ifndef PART
#define PART WHOLE
#endif

SHARED float4 q4[ROWS][K_DIM / 4];
SHARED float4 k4[ROWS][K_DIM / 4];
#if CHANNELS
SHARED float4 g4[ROWS][K_DIM / 4];
#endif
SHARED float values[ROWS][COLS];
SHARED float2 gates[ROWS]; // decay and beta of each token

/// The part of ROWS tokens that a thread loads: eighths of heads of q, k and alpha, numbers of v,
/// and gates.
struct LoadedRows
{
    float4 heads[HEADS_EACH][EIGHTH];
    float values[VALUES_EACH];
    float alpha, beta;
};

/// Loads the rows of `span` starting at `at`. Past its end, the last row is loaded again.
DEVICE LoadedRows loadRows(const Span& span, int at, uint3 group, uint thread)
{
    uint head = group.x, k_head = keyHeadOf(span.args, head);
    LoadedRows rows;
    UNROLL for (uint j = 0; j < HEADS_EACH; j++)
    {
        uint i = j * EIGHTS + thread / 8;
        int row = span.within(at + int(i / PARTS));
#if CHANNELS
        uint8_t* x = (i % PARTS == 2 ? channelsAt(span, row, head)
                                     : headAt(span, row, i % PARTS, k_head)) + 16 * (thread % 8);
#else
        uint8_t* x = headAt(span, row, i % PARTS, k_head) + 16 * (thread % 8);
#endif
        UNROLL for (uint e = 0; e < EIGHTH; e++)
        {
            rows.heads[j][e] = 0;
            if (K_DIM % 32 == 0 || 8 * e + thread % 8 < K_DIM / 4)
                rows.heads[j][e] = loadFour(x, K_DIM, 32 * e);
        }
    }
    UNROLL for (uint j = 0; j < VALUES_EACH; j++)
    {
        uint i = j * THREADS + thread, col = min(group.y * COLS + i % COLS, V_DIM - 1);
        rows.values[j] = valueAt(span, span.within(at + int(i / COLS)), head, col);
    }
    float2 gate = gatesAt(span, span.within(at + int(thread)), head);
    rows.alpha = gate.x;
    rows.beta = gate.y;
    return rows;
}

/// Stores rows to shared memory, with q and k normalised and gates as factors.
DEVICE void stageRows(ARGS, LoadedRows rows, uint head, float decay, float bias, uint thread)
{
    UNROLL for (uint j = 0; j < HEADS_EACH; j++)
    {
        float sum = 0;
        UNROLL for (uint e = 0; e < EIGHTH; e++)
            sum += dot(rows.heads[j][e], rows.heads[j][e]);
        sum = neighbourSum<8>(sum);
        uint i = j * EIGHTS + thread / 8;
        if (i >= PARTS * ROWS) break;
        float scale = rsqrt(sum + L2_EPS) * (i % PARTS != 0 ? 1.0f : rsqrt(float(K_DIM)));
        if (SSM != 0) scale = 1.0f;
        UNROLL for (uint e = 0; e < EIGHTH; e++)
        {
            uint four = 8 * e + thread % 8;
            if (K_DIM % 32 != 0 && four >= K_DIM / 4) break;
#if CHANNELS
            if (i % PARTS == 2)
            {
                float4 x = rows.heads[j][e];
                const float* biases = args.decay_bias + head * K_DIM + 4 * four;
                UNROLL for (uint c = 0; c < 4; c++)
                    x[c] = boundedDecayOf(decay, x[c] + biases[c], args.floor);
                g4[i / PARTS][four] = x;
                continue;
            }
#endif
            if (i % PARTS != 0) k4[i / PARTS][four] = rows.heads[j][e] * scale;
            else q4[i / PARTS][four] = rows.heads[j][e] * scale;
        }
    }
    UNROLL for (uint j = 0; j < VALUES_EACH; j++)
    {
        uint i = j * THREADS + thread;
        if (i < ROWS * COLS) values[i / COLS][i % COLS] = rows.values[j];
    }
    if (thread < ROWS)
    {
#if CHANNELS
        gates[thread] = float2(1.0f, sigmoid(rows.beta));
#elif FLOOR
        gates[thread]
            = float2(boundedDecayOf(decay, rows.alpha + bias, args.floor), sigmoid(rows.beta));
#else
        float pace = softplus(rows.alpha + bias);
        gates[thread] = float2(exp(decay * pace), SSM ? pace : sigmoid(rows.beta));
#endif
    }
}

KERNEL(delta_rule, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint head = group.x, sequence = group.z, begin = 0, end = 1;
    if (args.is_one_token == 0)
    {
        if (sequence >= args.step->sequences) return;
        PartRows part = rowsOfPart(args.step, sequence, PART);
        begin = part.begin;
        end = part.end;
        if (begin == end) return;
    }
    uint share = thread % SHARE, c = thread / SHARE, col = group.y * COLS + c;
    bool inside = col < V_DIM;
    uint source = min(col, V_DIM - 1); // threads past the last column store nothing
    float* slot = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats;
    Span span = spanOf(args, slot, begin, end);
    LoadedRows rows = loadRows(span, span.start, group, thread);
    float decay = args.decay[head], bias = CHANNELS ? 0.0f : args.decay_bias[head];
    float skip = SSM ? args.skip[head] : 0.0f;

    uint first = (head * V_DIM + source) * K_DIM + 4 * share;
#if ROLLBACK
    float4* state = (float4*)(span.halfOf(span.chunk) + first);
    bool fresh = span.chunk == 0;
#else
    float4* state = (float4*)(slot + first);
    bool fresh = positionOf(args.step, begin) == 0;
#endif
    float4 s[FOURS];
    UNROLL for (uint i = 0; i < FOURS; i++) s[i] = loadAligned<16>(state + i * SHARE);
    if (fresh)
    {
        UNROLL for (uint i = 0; i < FOURS; i++) s[i] = 0;
    }

    for (int at = span.start; at < span.end; at += ROWS)
    {
        uint n = min(ROWS, span.end - at);
        __syncthreads();
        stageRows(args, rows, head, decay, bias, thread);
        __syncthreads();
        if (at + ROWS < span.end) rows = loadRows(span, at + ROWS, group, thread);

        for (uint t = 0; t < n; t++)
        {
            float2 gate = gates[t];
            float4 sum = 0;
            UNROLL for (uint i = 0; i < FOURS; i++)
            {
#if CHANNELS
                s[i] *= g4[t][i * SHARE + share];
#else
                s[i] *= gate.x;
#endif
                if (!SSM) sum += s[i] * k4[t][i * SHARE + share];
            }
            float known = sum.x + sum.y + sum.z + sum.w;
            if (!SSM) known = neighbourSum<SHARE>(known);
            float d = gate.y * (values[t][c] - known);
            sum = 0;
            UNROLL for (uint i = 0; i < FOURS; i++)
            {
                s[i] += k4[t][i * SHARE + share] * d;
                sum += s[i] * q4[t][i * SHARE + share];
            }
            float y = neighbourSum<SHARE>(sum.x + sum.y + sum.z + sum.w);
            if (SSM) y += skip * values[t][c];
            int row = at + int(t);
            if (share == 0 && inside && row >= span.begin)
                ((float*)(args.y + uint64_t(row) * args.y_stride))[head * V_DIM + col] = y;
        }
#if ROLLBACK
        uint next = span.chunkOf(at + ROWS);
        if (n == CHUNK && next + 1 >= span.last && inside)
        {
            state = (float4*)(span.halfOf(next) + first);
            UNROLL for (uint i = 0; i < FOURS; i++)
                storeAligned<16>(state + i * SHARE, s[i]);
        }
#endif
    }
#if ROLLBACK
    keepRows(span, group, thread);
#else
    if (!inside) return;
    UNROLL for (uint i = 0; i < FOURS; i++) storeAligned<16>(state + i * SHARE, s[i]);
#endif
}
