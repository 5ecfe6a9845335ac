// The selective scan of Mamba, token by token (zinc.ops.selective_scan). COLS columns (group.x) of one
// sequence (group.y) have states of SIZE numbers, which stay in registers. SHARE lanes share a column:
// each holds every SHARE-th number. ROWS tokens at a time are staged in shared memory, while the next
// tokens are prefetched. The state is S [SIZE, cols].
//   ROLLBACK  if not 0, the state is a ring of 1 + ROLLBACK states by their position, so that a
//             sequence can be rolled back by that many rows

#include "arguments.h"

using Arguments = SelectiveScanArguments;

#include "step.cuh"
#include "decay.cuh"
#include "floats.cuh"

#define RING (1 + ROLLBACK)
#define ROWS 16
#define COLS (THREADS / SHARE)
#define EACH (SIZE / SHARE) // numbers of a state per lane
#define COLS_EACH (ROWS * COLS / THREADS) // numbers of x and dt per thread
#define SIZES_EACH ((ROWS * SIZE + THREADS - 1) / THREADS) // numbers of B and C per thread

SHARED float rows_x[ROWS][COLS];
SHARED float paces[ROWS][COLS];
SHARED float rows_b[ROWS][SIZE];
SHARED float rows_c[ROWS][SIZE];

/// The part of ROWS tokens that a thread loads.
struct LoadedRows
{
    float x[COLS_EACH], dt[COLS_EACH], b[SIZES_EACH], c[SIZES_EACH];
};

DEVICE float loadFloat(uint8_t* base, uint row, uint stride, uint col)
{
    return ((float*)rowAt(base, row, stride))[col];
}

/// Loads the rows starting at `first`. Past the end, the last row is loaded again.
DEVICE LoadedRows loadRows(ARGS, uint first, uint end, uint thread)
{
    LoadedRows rows;
    uint col = min(blockIdx.x * COLS + thread % COLS, args.cols - 1);
    UNROLL for (uint j = 0; j < COLS_EACH; j++)
    {
        uint row = min(first + (j * THREADS + thread) / COLS, end - 1);
        rows.x[j] = loadFloat(args.x, row, args.x_stride, col);
        rows.dt[j] = loadFloat(args.dt, row, args.dt_stride, col);
    }
    UNROLL for (uint j = 0; j < SIZES_EACH; j++)
    {
        uint at = j * THREADS + thread, row = min(first + at / SIZE, end - 1);
        rows.b[j] = loadFloat(args.b, row, args.b_stride, at % SIZE);
        rows.c[j] = loadFloat(args.c, row, args.c_stride, at % SIZE);
    }
    return rows;
}

/// Stores rows to shared memory. bias: that of the thread's column of dt.
DEVICE void stageRows(const LoadedRows& rows, float bias, uint thread)
{
    UNROLL for (uint j = 0; j < COLS_EACH; j++)
    {
        uint row = (j * THREADS + thread) / COLS;
        rows_x[row][thread % COLS] = rows.x[j];
        paces[row][thread % COLS] = softplus(rows.dt[j] + bias);
    }
    UNROLL for (uint j = 0; j < SIZES_EACH; j++)
    {
        uint at = j * THREADS + thread;
        if (at >= ROWS * SIZE) break;
        rows_b[at / SIZE][at % SIZE] = rows.b[j];
        rows_c[at / SIZE][at % SIZE] = rows.c[j];
    }
}

KERNEL(selective_scan, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint sequence = group.y;
    if (sequence >= args.step->sequences) return;
    uint begin = args.step->seq_start[sequence], end = args.step->seq_start[sequence + 1];
    if (begin == end) return;
    LoadedRows rows = loadRows(args, begin, end, thread);
    float bias = args.dt_bias[min(group.x * COLS + thread % COLS, args.cols - 1)];
    uint share = thread % SHARE, c = thread / SHARE, col = group.x * COLS + c;
    bool inside = col < args.cols;
    uint source = min(col, args.cols - 1); // threads past the last column store nothing

    float* slot = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats;
    uint position = positionOf(args.step, begin);
    uint before = (position + RING - 1) % RING * SIZE * args.cols;
    float s[EACH], decay[EACH], skip = args.skip[source];
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        decay[i] = args.decay[source * SIZE + i * SHARE + share];
        s[i] = position == 0 ? 0.0f : slot[before + (i * SHARE + share) * args.cols + source];
    }

    for (uint first = begin; first < end; first += ROWS)
    {
        uint n = min(ROWS, end - first);
        __syncthreads();
        stageRows(rows, bias, thread);
        __syncthreads();
        if (first + ROWS < end) rows = loadRows(args, first + ROWS, end, thread);
        for (uint t = 0; t < n; t++)
        {
            uint row = first + t;
            float x = rows_x[t][c], pace = paces[t][c], y = 0;
            UNROLL for (uint i = 0; i < EACH; i++)
            {
                s[i] = exp(decay[i] * pace) * s[i] + pace * x * rows_b[t][i * SHARE + share];
                y += s[i] * rows_c[t][i * SHARE + share];
            }
            y = neighbourSum<SHARE>(y);
            if (inside && share == 0) ((float*)rowAt(args.y, row, args.y_stride))[col] = y + skip * x;
            uint at = (position + row - begin) % RING * SIZE * args.cols;
            if (inside && row + RING >= end)
                UNROLL for (uint i = 0; i < EACH; i++)
                    slot[at + (i * SHARE + share) * args.cols + col] = s[i];
        }
    }
}
