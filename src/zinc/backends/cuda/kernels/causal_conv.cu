// A depthwise causal convolution along each sequence (group.y). A workgroup iterates over the rows of
// COLS columns (group.x), ROWS at a time, so that y may overwrite x. The state holds the last TAPS - 1
// rows of x, oldest first.
//   BIAS      each column has a bias
//   WITH_SILU y is SiLU of the sum
//   ROLLBACK  if not 0, the state is a ring of TAPS - 1 + ROLLBACK rows by their position, so that
//             a sequence can be rolled back by that many rows

#include "arguments.h"

using Arguments = CausalConvArguments;

#include "step.cuh"
#include "activation.cuh"

#define COLS 32
#define ROWS 32
#define SIDE (THREADS / COLS) // rows that threads handle at once
#define RING (TAPS - 1 + ROLLBACK)

SHARED float line[ROWS + TAPS - 1][COLS];

KERNEL(causal_conv, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint sequence = group.y;
    if (sequence >= args.step->sequences) return;
    uint at = args.step->seq_start[sequence], end = args.step->seq_start[sequence + 1];
    if (at == end) return;
    uint c = thread % COLS, side = thread / COLS, col = group.x * COLS + c;
    bool inside = col < args.cols;
    uint source = min(col, args.cols - 1); // threads past the last column store nothing

    float* state = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats;
    uint position = positionOf(args.step, at);
    float taps[TAPS];
    UNROLL for (uint t = 0; t < TAPS; t++) taps[t] = args.weight[source * TAPS + t];
    float bias = BIAS ? args.bias[source] : 0.0f;
    for (uint t = side; t < TAPS - 1; t += SIDE)
#if ROLLBACK
        line[t][c] = position + t < TAPS - 1
            ? 0.0f
            : state[(position + t - (TAPS - 1)) % RING * args.cols + source];
#else
        line[t][c] = position == 0 ? 0.0f : state[t * args.cols + source];
#endif

    for (; at < end; at += ROWS)
    {
        uint n = min(ROWS, end - at);
        for (uint i = side; i < n; i += SIDE)
            line[TAPS - 1 + i][c] = ((float*)(args.x + uint64_t(at + i) * args.x_stride))[source];
        __syncthreads();
        for (uint i = side; i < n; i += SIDE)
        {
            float sum = bias;
            UNROLL for (uint t = 0; t < TAPS; t++) sum += taps[t] * line[i + t][c];
            if (WITH_SILU) sum *= sigmoid(sum);
            if (inside) ((float*)(args.y + uint64_t(at + i) * args.y_stride))[col] = sum;
#if ROLLBACK
            if (inside && at + i + RING >= end)
                state[(position + i) % RING * args.cols + col] = line[TAPS - 1 + i][c];
#endif
        }
        __syncthreads();
        if (side == 0)
            for (uint t = 0; t < TAPS - 1; t++) line[t][c] = line[n + t][c];
        __syncthreads();
#if ROLLBACK
        position += n;
#endif
    }
#if !ROLLBACK
    if (side == 0 && inside)
        for (uint t = 0; t < TAPS - 1; t++) state[t * args.cols + col] = line[t][c];
#endif
}
