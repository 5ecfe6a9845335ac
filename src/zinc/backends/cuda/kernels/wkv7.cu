// The recurrence of RWKV-7, token by token (zinc.ops.wkv). COLS columns of the state of a head
// (group.x) of one sequence (group.y) stay in registers. SHARE lanes share a column: each holds every
// SHARE-th number. ROWS tokens at a time are staged in shared memory, each by SHARE lanes, while the
// next tokens are prefetched. The state is S [cols, DIM].
//   MIX       values are mixed with those of the first layer
//   ROLLBACK  if not 0, the state is a ring of 1 + ROLLBACK states by their position, so that a
//             sequence can be rolled back by that many rows

#include "arguments.h"

using Arguments = Wkv7Arguments;

#include "step.cuh"
#include "activation.cuh"

#define RING (1 + ROLLBACK)
#define ROWS (THREADS / SHARE)
#define COLS ROWS
#define BLOCKS (DIM / COLS) // workgroups of a head
#define EACH (DIM / SHARE) // numbers of a column per lane
#define COLS_EACH (COLS / SHARE) // values of a token per lane
// Constants of zinc.ops.wkv.
#define LOG_DECAY -0.606531f
#define LEAST_LENGTH 1e-12f

SHARED float rows_r[ROWS][DIM];
SHARED float decays[ROWS][DIM];
SHARED float removals[ROWS][DIM];
SHARED float removed[ROWS][DIM];
SHARED float rows_k[ROWS][DIM];
SHARED float rows_v[ROWS][COLS];

/// The part of a token that a lane loads.
struct LoadedRow
{
    float r[EACH], w[EACH], k[EACH], a[EACH], v[COLS_EACH], first[COLS_EACH], mix[COLS_EACH];
};

DEVICE float loadFloat(uint8_t* base, uint row, uint stride, uint col)
{
    return ((float*)base)[uint64_t(row) * stride + col];
}

/// Loads the lane's part of a token. head, left: first columns of the head and of the workgroup.
DEVICE LoadedRow loadRow(ARGS, uint row, uint head, uint left, uint share)
{
    LoadedRow loaded;
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint col = head + i * SHARE + share;
        loaded.r[i] = loadFloat(args.r, row, args.r_stride, col);
        loaded.w[i] = loadFloat(args.w, row, args.w_stride, col);
        loaded.k[i] = loadFloat(args.k, row, args.k_stride, col);
        loaded.a[i] = loadFloat(args.a, row, args.a_stride, col);
    }
    UNROLL for (uint i = 0; i < COLS_EACH; i++)
    {
        uint col = left + i * SHARE + share;
        loaded.v[i] = loadFloat(args.v, row, args.v_stride, col);
#if MIX
        loaded.first[i] = loadFloat(args.first, row, args.first_stride, col);
        loaded.mix[i] = loadFloat(args.mix, row, args.mix_stride, col);
#endif
    }
    return loaded;
}

/// Stores the factors of token t to shared memory. Returns r . (bonus * k).
DEVICE float stageRow(ARGS, const LoadedRow& loaded, uint t, uint head, uint share)
{
    float squares = 0, bonus = 0;
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint at = i * SHARE + share;
        float rate = sigmoid(loaded.a[i]), removal = loaded.k[i] * args.removal[head + at];
        float k = loaded.k[i] * (1.0f + (rate - 1.0f) * args.scaling[head + at]);
        squares += removal * removal;
        bonus += loaded.r[i] * k * args.bonus[head + at];
        rows_r[t][at] = loaded.r[i];
        decays[t][at] = exp(LOG_DECAY * sigmoid(loaded.w[i]));
        rows_k[t][at] = k;
    }
    squares = neighbourSum<SHARE>(squares);
    bonus = neighbourSum<SHARE>(bonus);
    float scale = 1.0f / max(sqrt(squares), LEAST_LENGTH);
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint at = i * SHARE + share;
        float removal = loaded.k[i] * args.removal[head + at] * scale;
        removals[t][at] = removal;
        removed[t][at] = removal * sigmoid(loaded.a[i]);
    }
    UNROLL for (uint i = 0; i < COLS_EACH; i++)
    {
        float v = loaded.v[i];
#if MIX
        v += sigmoid(loaded.mix[i]) * (loaded.first[i] - v);
#endif
        rows_v[t][i * SHARE + share] = v;
    }
    return bonus;
}

KERNEL(wkv7, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint sequence = group.y;
    if (sequence >= args.step->sequences) return;
    uint begin = args.step->seq_start[sequence], end = args.step->seq_start[sequence + 1];
    if (begin == end) return;
    uint share = thread % SHARE, c = thread / SHARE;
    uint head = group.x / BLOCKS * DIM, left = group.x * COLS, col = group.x % BLOCKS * COLS + c;
    LoadedRow loaded = loadRow(args, min(begin + c, end - 1), head, left, share);

    float* slot = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats;
    uint position = positionOf(args.step, begin), size = args.cols * DIM;
    uint before = (position + RING - 1) % RING * size;
    float s[EACH];
    UNROLL for (uint i = 0; i < EACH; i++)
        s[i] = position == 0 ? 0.0f : slot[before + (head + i * SHARE + share) * DIM + col];

    for (uint first = begin; first < end; first += ROWS)
    {
        uint n = min(ROWS, end - first);
        __syncthreads();
        float bonus = stageRow(args, loaded, c, head, share);
        if (first + c < end)
            UNROLL for (uint i = 0; i < COLS_EACH; i++)
            {
                uint at = i * SHARE + share;
                float* y = (float*)args.y + uint64_t(first + c) * args.y_stride;
                y[args.cols + left + at] = bonus * rows_v[c][at];
            }
        __syncthreads();
        if (first + ROWS < end) loaded = loadRow(args, min(first + ROWS + c, end - 1), head, left, share);
        for (uint t = 0; t < n; t++)
        {
            uint row = first + t;
            float seen = 0, o = 0, v = rows_v[t][c];
            UNROLL for (uint i = 0; i < EACH; i++) seen += removals[t][i * SHARE + share] * s[i];
            seen = neighbourSum<SHARE>(seen);
            UNROLL for (uint i = 0; i < EACH; i++)
            {
                uint at = i * SHARE + share;
                s[i] = decays[t][at] * s[i] - removed[t][at] * seen + rows_k[t][at] * v;
                o += rows_r[t][at] * s[i];
            }
            o = neighbourSum<SHARE>(o);
            if (share == 0) ((float*)args.y)[uint64_t(row) * args.y_stride + left + c] = o;
            uint at = (position + row - begin) % RING * size;
            if (row + RING >= end)
                UNROLL for (uint i = 0; i < EACH; i++)
                    slot[at + (head + i * SHARE + share) * DIM + col] = s[i];
        }
    }
}
