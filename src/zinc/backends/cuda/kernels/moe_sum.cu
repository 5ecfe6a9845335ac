// The second part of moe_down for many tokens: sums the products of a token's slots in order of
// rank, and adds biases and the residual.

#include "arguments.h"

using Arguments = MoeSumArguments;

#include "step.cuh"

KERNEL(moe_sum, Arguments)
{
    uint token = blockIdx.y, r = blockIdx.x * THREADS + threadIdx.x, top_k = args.top_k;
    if (token >= rowsOf(args.step, args.dim) || r >= args.rows) return;
    float* route = (float*)((uint8_t*)args.routes + uint64_t(token) * args.routes_stride);
    float sum = 0;
    for (uint rank = 0; rank < top_k; rank++)
    {
        uint expert = uint(route[rank]);
        float v = args.products[uint64_t(token * top_k + rank) * args.rows + r];
        if (args.scale != nullptr) v *= args.scale[expert];
        if (args.bias != nullptr) v += args.bias[expert * args.rows + r];
        sum += route[top_k + rank] * v;
    }
    if (args.residual != nullptr)
        sum += *(float*)(args.residual + uint64_t(token) * args.residual_stride + 4 * r);
    *(float*)(args.y + uint64_t(token) * args.y_stride + 4 * r) = sum;
}
