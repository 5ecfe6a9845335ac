// delta_step: convolution, gated delta rule and gated norm of steps with one token a sequence
// (zinc.ops.recurrent_step). A block computes one value head (group.x) of one sequence (group.y).
// The state is stored as S transposed: [value heads, V_DIM, K_DIM]. A group of SHARE lanes updates
// COLUMNS columns of S, and each lane holds every SHARE-th float4 of a column. The kernel loads the
// states of S and of the convolution before it waits for its inputs, because only earlier steps
// have written them.
//   TAPS      of the convolution, whose state has the last TAPS - 1 rows of x, oldest first
//   REPEATS   value heads that share a key head
//   GROUPED   they are neighbours
//   ROLLBACK  if not 0, states are those of delta_slot.cuh and causal_conv.cu, which can be rolled back
//   Q8        y is a row of 8-bit blocks

#include "arguments.h"

using Arguments = DeltaStepArguments;

#include "activation.cuh"
#include "decay.cuh"
#include "delta_slot.cuh"
#include "floats.cuh"
#include "q8.cuh"
#include "step.cuh"

#define SHARE 8
#define GROUPS (THREADS / SHARE) // lanes that share columns
#define COLUMNS (V_DIM / GROUPS)
#define FOURS (K_DIM / (4 * SHARE))
#define COLS (2 * K_DIM + V_DIM) // of q, k and v of the head
#define COLS_EACH ((COLS + THREADS - 1) / THREADS)
#define L2_EPS 1e-6f
#define RING (TAPS - 1 + ROLLBACK)

static_assert(V_DIM % GROUPS == 0 && V_DIM <= 4 * SUBGROUP);

SHARED float4 heads[COLS / 4]; // q, k and v after the convolution
SHARED float outputs[V_DIM];
#if ROLLBACK
SHARED float4 kept_keys[KEPT][K_DIM / 4];
SHARED float kept_values[KEPT][V_DIM];
SHARED float2 kept_gates[KEPT]; // decay and beta
#else
SHARED float next[TAPS - 1][COLS]; // rows of x that the next step reads
SHARED bool read_last; // whether no other value head of the key head still reads its columns
#endif

/// A column of the convolution: q, k or v of the block's head.
struct Convolution
{
    float last[TAPS - 1], taps[TAPS];

    /// Loads the column. `state` is that of the sequence, whose token is at `position`.
    MEMBER void load(ARGS, const float* state, uint col, uint position)
    {
        UNROLL for (uint t = 0; t < TAPS; t++) taps[t] = args.conv_weight[col * TAPS + t];
        UNROLL for (uint t = 0; t < TAPS - 1; t++)
        {
            bool fresh = ROLLBACK ? position + t < TAPS - 1 : position == 0;
            uint place = ROLLBACK ? (position + t - (TAPS - 1)) % RING : t;
            last[t] = fresh ? 0.0f : state[place * args.cols + col];
        }
    }

    /// Stores the result for `x` and the next state of column `i` to shared memory. With ROLLBACK
    /// the state is a ring, to which the caller adds `x`.
    MEMBER void apply(float x, uint i) const
    {
        float sum = taps[TAPS - 1] * x;
        UNROLL for (uint t = 0; t < TAPS - 1; t++)
        {
            sum += taps[t] * last[t];
#if !ROLLBACK
            next[t][i] = t + 1 < TAPS - 1 ? last[min(t + 1, TAPS - 2)] : x;
#endif
        }
        ((float*)heads)[i] = sum * sigmoid(sum);
    }
};

/// Returns the column of x that is column `i` of q, k and v of the head.
DEVICE uint columnOf(ARGS, uint head, uint k_head, uint i)
{
    const uint k_cols = args.n_k_heads * K_DIM;
    return i < K_DIM ? k_head * K_DIM + i
        : i < 2 * K_DIM ? k_cols + k_head * K_DIM + i - K_DIM
                        : 2 * k_cols + head * V_DIM + i - 2 * K_DIM;
}

/// Returns the factor that gives a head of q or k in shared memory the length 1.
DEVICE float inverseLength(const float* head, uint lane)
{
    float sum = 0;
    UNROLL for (uint i = 0; i < K_DIM / SUBGROUP; i++)
        sum += head[i * SUBGROUP + lane] * head[i * SUBGROUP + lane];
    return rsqrt(warpSum(sum) + L2_EPS);
}

DEVICE float sumOfShares(float4 x)
{
    float sum = x.x + x.y + x.z + x.w;
    UNROLL for (uint m = 1; m < SHARE; m *= 2) sum += shuffleXor<SHARE>(sum, m);
    return sum;
}

#if ROLLBACK
/// Multiplies a lane's part of a column of S with `decay` and adds a row. key: not normalised.
DEVICE void update(
    float4 (&s)[FOURS], const float4* key, float k_scale, float decay, float beta, float v)
{
    const uint share = threadIdx.x % SHARE;
    float4 known = 0;
    UNROLL for (uint i = 0; i < FOURS; i++)
    {
        s[i] *= decay;
        known += s[i] * key[i * SHARE + share];
    }
    const float d = beta * (v - k_scale * sumOfShares(known)) * k_scale;
    UNROLL for (uint i = 0; i < FOURS; i++) s[i] += key[i * SHARE + share] * d;
}

/// Adds the rows of the chunk that earlier steps ran to S.
DEVICE void applyKept(const Span& span, uint head, uint k_head, float4 (&s)[COLUMNS][FOURS])
{
    const Arguments& args = span.args;
    const uint thread = threadIdx.x, c = thread / SHARE, n = span.begin - span.start;
    if (span.chunk == 0)
        UNROLL for (uint j = 0; j < COLUMNS; j++)
            UNROLL for (uint i = 0; i < FOURS; i++) s[j][i] = 0;
    if (n == 0) return;
    for (uint i = thread; i < n * (K_DIM / 4); i += THREADS)
    {
        const uint t = i / (K_DIM / 4), four = i % (K_DIM / 4);
        kept_keys[t][four]
            = loadAligned<16>((float4*)span.keptKey(span.start + int(t), k_head) + four);
    }
    for (uint i = thread; i < n * V_DIM; i += THREADS)
        kept_values[i / V_DIM][i % V_DIM]
            = span.keptValue(span.start + int(i / V_DIM), head)[i % V_DIM];
    if (thread < n)
    {
        const int row = span.start + int(thread);
        const float alpha = *span.keptAlpha(row, head) + args.decay_bias[head];
        kept_gates[thread]
            = float2(decayOf(args.decay[head], alpha), sigmoid(*span.keptBeta(row, head)));
    }
    __syncthreads();
    for (uint t = 0; t < n; t++)
    {
        const float k_scale = inverseLength((float*)kept_keys[t], thread % SUBGROUP);
        const float2 gate = kept_gates[t];
        UNROLL for (uint j = 0; j < COLUMNS; j++)
            update(s[j], kept_keys[t], k_scale, gate.x, gate.y, kept_values[t][j * GROUPS + c]);
    }
}

/// Keeps the inputs of the token's row. is_first: the block keeps those of the key head.
DEVICE void keepInputs(
    const Span& span, uint head, uint k_head, bool is_first, float alpha, float beta)
{
    const uint thread = threadIdx.x;
    float4* key = (float4*)span.keptKey(span.begin, k_head);
    if (is_first && thread < K_DIM / 4) storeAligned<16>(key + thread, heads[K_DIM / 4 + thread]);
    if (thread < V_DIM)
        span.keptValue(span.begin, head)[thread] = ((float*)heads)[2 * K_DIM + thread];
    if (thread == 0)
    {
        *span.keptAlpha(span.begin, head) = alpha;
        *span.keptBeta(span.begin, head) = beta;
    }
}
#endif

/// Normalises the outputs of the head, multiplies them with silu(z) and stores them. The first warp
/// calls it with four columns a lane.
DEVICE void storeNormalised(ARGS, uint8_t* row, uint head, float4 z, float4 weight, uint lane)
{
    const bool inside = 4 * lane < V_DIM;
    const uint at = inside ? 4 * lane : 0;
    float4 y = float4(outputs[at], outputs[at + 1], outputs[at + 2], outputs[at + 3]);
    const float sum = warpSum(inside ? dot(y, y) : 0.0f);
    y *= rsqrt(sum / float(V_DIM) + args.eps) * weight;
    UNROLL for (uint i = 0; i < 4; i++) y[i] *= z[i] * sigmoid(z[i]);
    if (!inside) return;
#if Q8
    storeQ8(row, args.n_v_heads * V_DIM, head * V_DIM + at, y);
#else
    storeFour(row + 4 * head * V_DIM, V_DIM, at, y);
#endif
}

EARLY_KERNEL(delta_step, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP;
    const uint head = blockIdx.x, sequence = blockIdx.y; // its only token has the same index
    if (sequence >= args.step->sequences) return waitForInputs();
    const uint k_head = GROUPED ? head / REPEATS : head % args.n_k_heads;
    const uint share = thread % SHARE, c = thread / SHARE;
    const uint64_t slot = uint(args.step->state_slot[sequence]);
    const uint position = positionOf(args.step, sequence);
    const uint own = (head * V_DIM + c) * K_DIM + 4 * share; // first float of the lane in S
    float* states = args.state + slot * args.slot_floats;
#if ROLLBACK
    const Span span = spanOf(args, states, sequence, sequence + 1);
    float4* state = (float4*)(span.halfOf(span.chunk) + own);
    const bool fresh = false;
#else
    float4* state = (float4*)(states + own);
    const bool fresh = position == 0;
#endif
    float4 s[COLUMNS][FOURS];
    UNROLL for (uint j = 0; j < COLUMNS; j++)
        UNROLL for (uint i = 0; i < FOURS; i++)
            s[j][i] = loadAligned<16>(state + j * GROUPS * K_DIM / 4 + i * SHARE);
#if ROLLBACK
    applyKept(span, head, k_head, s);
#endif
    float* conv_state = args.conv_state + slot * args.conv_slot_floats;
    Convolution conv[COLS_EACH];
    UNROLL for (uint j = 0; j < COLS_EACH; j++)
    {
        const uint i = j * THREADS + thread;
        if (i < COLS) conv[j].load(args, conv_state, columnOf(args, head, k_head, i), position);
    }
    const float decay = args.decay[head], bias = args.decay_bias[head];
    const uint at = min(4 * lane, V_DIM - 4);
    const float4 weight = loadFour(args.norm, V_DIM, at);

    waitForInputs();
#if ROLLBACK
    const bool is_first = GROUPED ? head % REPEATS == 0 : head < args.n_k_heads;
#endif
    const float* x = (float*)rowAt(args.x, sequence, args.x_stride);
    const float alpha = ((float*)rowAt(args.alpha, sequence, args.alpha_stride))[head];
    const float beta = ((float*)rowAt(args.beta, sequence, args.beta_stride))[head];
    const float4 z
        = loadFour(rowAt(args.z, sequence, args.z_stride) + 4 * head * V_DIM, V_DIM, at);
    UNROLL for (uint j = 0; j < COLS_EACH; j++)
    {
        const uint i = j * THREADS + thread;
        if (i >= COLS) break;
        const uint col = columnOf(args, head, k_head, i);
        conv[j].apply(x[col], i);
#if ROLLBACK
        if (i >= 2 * K_DIM || is_first) conv_state[position % RING * args.cols + col] = x[col];
#endif
    }
    __syncthreads();

#if ROLLBACK
    const bool stores = position % CHUNK == KEPT; // S changes at the end of a chunk only
    state = (float4*)(span.halfOf(span.chunk + 1) + own);
    if (!stores) keepInputs(span, head, k_head, is_first, alpha, beta);
#else
    const bool stores = true;
    // Value heads that share a key head have all read its columns before the last one writes them.
    // The count arrives while the block works, and nothing is stored yet that a fence waits for.
    uint* arrived = args.arrived + (sequence * args.n_k_heads + k_head);
    uint n_read = 0;
    if (thread == 0)
    {
        __threadfence();
        n_read = atomicAdd(arrived, 1u);
    }
#endif
    const float q_scale = inverseLength((float*)heads, lane) * rsqrt(float(K_DIM));
    const float k_scale = inverseLength((float*)heads + K_DIM, lane);
    const float kept = decayOf(decay, alpha + bias);
    UNROLL for (uint j = 0; j < COLUMNS; j++)
    {
        float4 known = 0, sum = 0;
        UNROLL for (uint i = 0; i < FOURS; i++)
        {
            s[j][i] = fresh ? float4(0.0f) : s[j][i] * kept;
            known += s[j][i] * heads[K_DIM / 4 + i * SHARE + share];
        }
        const float v = ((float*)heads)[2 * K_DIM + j * GROUPS + c];
        const float d = sigmoid(beta) * (v - k_scale * sumOfShares(known)) * k_scale;
        UNROLL for (uint i = 0; i < FOURS; i++)
        {
            s[j][i] += heads[K_DIM / 4 + i * SHARE + share] * d;
            sum += s[j][i] * heads[i * SHARE + share];
            if (stores) storeAligned<16>(state + j * GROUPS * K_DIM / 4 + i * SHARE, s[j][i]);
        }
        const float y = q_scale * sumOfShares(sum);
        if (share == 0) outputs[j * GROUPS + c] = y;
    }
#if !ROLLBACK
    if (thread == 0)
    {
        read_last = n_read == REPEATS - 1;
        if (read_last) *arrived = 0;
    }
#endif
    __syncthreads();
    if (thread < SUBGROUP)
        storeNormalised(args, rowAt(args.y, sequence, args.y_stride), head, z, weight, lane);
#if !ROLLBACK
    UNROLL for (uint j = 0; j < COLS_EACH; j++)
    {
        const uint i = j * THREADS + thread, col = columnOf(args, head, k_head, i);
        if (i >= COLS || (i < 2 * K_DIM && !read_last)) continue;
        UNROLL for (uint t = 0; t < TAPS - 1; t++) conv_state[t * args.cols + col] = next[t][i];
    }
#endif
}
