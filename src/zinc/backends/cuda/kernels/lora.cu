// lora: result = y + scale * b (a x) for a row of x, where `scale` is the adapter scale of the row's
// sequence. A block multiplies a slice of the rows of b. Rows whose scale is 0 stay unchanged.
//   RANK        rows of a, columns of b
//   SHRINKS     1: multiply x by a first; 0: x has been multiplied by a already
//   ROWS_Q8     rows of x are 8-bit blocks (q8.cuh)
//   IN_PLACE    result is y
//   OF_OUTPUTS  rows are output rows of the step, not tokens
// Matrices are float16, with rows padded to 16 bytes.

#include "arguments.h"

using Arguments = LoraArguments;

#include "step.cuh"
#include "floats.cuh"

SHARED float shrunk[RANK];

/// Returns column `col` of a row of x.
DEVICE float inputAt(ARGS, uint8_t* x, uint col)
{
#if ROWS_Q8
    float2* scales = (float2*)(x + (args.cols + 15) / 16 * 16);
    return float(((int8_t*)x)[col]) * scales[col / 32].x;
#else
    return ((float*)x)[col];
#endif
}

KERNEL(lora, Arguments)
{
    const uint thread = threadIdx.x, row = blockIdx.y;
    if (row >= rowsOf(args.step, args.dim)) return;
#if OF_OUTPUTS
    uint token = args.step->output_rows[row];
#else
    uint token = row;
#endif
    // The first number is the number of scales per sequence, 0 if no adapter is used.
    uint n_adapters = asuint(args.scales[0]);
    float scale = 0;
    if (n_adapters > 0)
        scale = args.scales[1 + args.step->sequence[token] * n_adapters + args.adapter];
    uint first = blockIdx.x * args.slice_rows, last = min(args.rows, first + args.slice_rows);
    float* y = (float*)rowAt(args.y, row, args.y_stride);
    float* result = (float*)rowAt(args.result, row, args.result_stride);
    if (scale == 0)
    {
#if !IN_PLACE
        for (uint i = first + thread; i < last; i += THREADS) result[i] = y[i];
#endif
        return;
    }

    uint8_t* x = rowAt(args.x, row, args.x_stride);
#if SHRINKS
    uint pitch = (args.cols + 7) / 8 * 4; // words of a row of a
    uint lane = thread % SUBGROUP;
    for (uint i = thread / SUBGROUP; i < RANK; i += THREADS / SUBGROUP)
    {
        float sum = 0;
        for (uint pair = lane; 2 * pair < args.cols; pair += SUBGROUP)
        {
            uint word = args.a[i * pitch + pair];
            sum = mad(f16tof32(word & 0xffffu), inputAt(args, x, 2 * pair), sum);
            if (2 * pair + 1 < args.cols)
                sum = mad(f16tof32(word >> 16), inputAt(args, x, 2 * pair + 1), sum);
        }
        sum = warpSum(sum);
        if (lane == 0) shrunk[i] = sum * scale;
    }
#else
    for (uint i = thread; i < RANK; i += THREADS) shrunk[i] = inputAt(args, x, i) * scale;
#endif
    __syncthreads();

    const uint pitchOfB = (RANK + 7) / 8 * 8;
    for (uint i = first + thread; i < last; i += THREADS)
    {
        float sum = 0;
        for (uint k = 0; k < RANK; k += 8)
        {
            uint4 words = loadAligned<16>((uint4*)(args.b + (i * pitchOfB + k) / 2));
            UNROLL for (uint j = 0; j < 8; j++)
                if (k + j < RANK)
                {
                    uint bits = j % 2 == 0 ? words[j / 2] & 0xffffu : words[j / 2] >> 16;
                    sum = mad(f16tof32(bits), shrunk[k + j], sum);
                }
        }
        result[i] = y[i] + sum;
    }
}
