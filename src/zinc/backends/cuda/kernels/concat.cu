// concat_heads: each head of a, followed by the same head of b. Each thread copies one column.

#include "arguments.h"

using Arguments = ConcatArguments;

#include "step.cuh"

KERNEL(concat, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint col = group.x * THREADS + thread;
    if (group.y >= rowsOf(args.step, args.dim) || col >= args.cols) return;
    uint width = args.a_head + args.b_head, head = col / width, at = col % width;
    float* a = (float*)(args.a + uint64_t(group.y) * args.a_stride);
    float* b = (float*)(args.b + uint64_t(group.y) * args.b_stride);
    float v;
    if (at < args.a_head) v = a[head * args.a_head + at];
    else v = b[head * args.b_head + at - args.a_head];
    ((float*)(args.y + uint64_t(group.y) * args.y_stride))[col] = v;
}
