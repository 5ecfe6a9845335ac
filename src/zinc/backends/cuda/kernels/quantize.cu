// quantize: converts float32 rows to 8-bit blocks. Each run of a row becomes a row of blocks of its
// own.

#include "arguments.h"

using Arguments = QuantizeArguments;

#include "step.cuh"
#include "q8.cuh"

KERNEL(quantize, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint row = group.y, col = 4 * (group.x * THREADS + thread);
    if (row >= rowsOf(args.step, args.dim) || col >= args.cols) return;
    float* x = (float*)(args.x + uint64_t(row) * args.x_stride) + col;
    uint8_t* y = args.y + uint64_t(row) * args.y_stride + col / args.run_cols * args.run_bytes;
    storeQ8(y, args.run_cols, col % args.run_cols, float4(x[0], x[1], x[2], x[3]));
}
