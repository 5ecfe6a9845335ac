// SiLU of a causal convolution along each sequence (group.y), for each column by itself. COLS
// columns (group.x) go through the rows ROWS at a time, so that y may overwrite x. The state holds
// the last TAPS - 1 rows of x, oldest first.

#include "arguments.h"

using Arguments = ConvSiluArguments;

#include "step.cuh"
#include "activation.cuh"

#define COLS 32
#define ROWS 32
#define SIDE (THREADS / COLS) // rows that threads handle at once

SHARED float line[ROWS + TAPS - 1][COLS];

KERNEL(conv_silu, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint sequence = group.y;
    if (sequence >= args.step->sequences) return;
    uint at = args.step->seq_start[sequence], end = args.step->seq_start[sequence + 1];
    if (at == end) return;
    uint c = thread % COLS, side = thread / COLS, col = group.x * COLS + c;
    bool inside = col < args.cols;
    uint source = min(col, args.cols - 1); // past the last column nothing is stored

    float* state = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats;
    bool fresh = positionOf(args.step, at) == 0;
    float taps[TAPS];
    UNROLL for (uint t = 0; t < TAPS; t++) taps[t] = args.weight[source * TAPS + t];
    for (uint t = side; t < TAPS - 1; t += SIDE)
        line[t][c] = fresh ? 0.0f : state[t * args.cols + source];

    for (; at < end; at += ROWS)
    {
        uint n = min(ROWS, end - at);
        for (uint i = side; i < n; i += SIDE)
            line[TAPS - 1 + i][c] = ((float*)(args.x + uint64_t(at + i) * args.x_stride))[source];
        __syncthreads();
        for (uint i = side; i < n; i += SIDE)
        {
            float sum = 0;
            UNROLL for (uint t = 0; t < TAPS; t++) sum += taps[t] * line[i + t][c];
            if (inside)
                ((float*)(args.y + uint64_t(at + i) * args.y_stride))[col] = sum * sigmoid(sum);
        }
        __syncthreads();
        if (side == 0)
            for (uint t = 0; t < TAPS - 1; t++) line[t][c] = line[n + t][c];
        __syncthreads();
    }
    if (side == 0 && inside)
        for (uint t = 0; t < TAPS - 1; t++) state[t * args.cols + col] = line[t][c];
}
