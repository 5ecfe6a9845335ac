// The token shift of RWKV: y = x + weight * (the row before it - x), for RUNS runs of columns that are
// as wide as x. A workgroup iterates over COLS columns (group.x) of one sequence (group.y), SIDE rows
// at a time. The state holds the last row of x.
//   ROLLBACK  if not 0, the state is a ring of 1 + ROLLBACK rows by their position, so that a
//             sequence can be rolled back by that many rows

#include "arguments.h"

using Arguments = TokenShiftArguments;

#include "step.cuh"
#include "floats.cuh"

#define RING (1 + ROLLBACK)
#define COLS 32
#define SIDE (THREADS / COLS) // rows that threads handle at once

KERNEL(token_shift, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint sequence = group.y;
    if (sequence >= args.step->sequences) return;
    uint begin = args.step->seq_start[sequence], end = args.step->seq_start[sequence + 1];
    if (begin == end) return;
    uint side = thread / COLS, col = group.x * COLS + thread % COLS;
    bool inside = col < args.cols;
    uint source = min(col, args.cols - 1); // threads past the last column store nothing

    float* slot = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats;
    uint position = positionOf(args.step, begin);
    float weight[RUNS];
    UNROLL for (uint i = 0; i < RUNS; i++) weight[i] = args.weight[i * args.cols + source];
    float start = position == 0 ? 0.0f : slot[(position + RING - 1) % RING * args.cols + source];
    __syncthreads(); // the state is read before any thread writes it

    for (uint row = begin + side; row < end; row += SIDE)
    {
        float x = ((float*)rowAt(args.x, row, args.x_stride))[source], before = start;
        if (row > begin) before = ((float*)rowAt(args.x, row - 1, args.x_stride))[source];
        if (!inside) continue;
        float* y = (float*)rowAt(args.y, row, args.y_stride);
        UNROLL for (uint i = 0; i < RUNS; i++) y[i * args.cols + col] = x + weight[i] * (before - x);
        if (row + RING >= end) slot[(position + row - begin) % RING * args.cols + col] = x;
    }
}
