// The second part of moe_down for many tokens: sums the products of a token's slots in order of
// rank, and adds biases and the residual. A thread sums four neighbouring columns.

#include "arguments.h"

using Arguments = MoeSumArguments;

#include "floats.cuh"
#include "step.cuh"

KERNEL(moe_sum, Arguments)
{
    const uint token = blockIdx.y, r = 4 * (blockIdx.x * THREADS + threadIdx.x), top_k = args.top_k;
    const uint cols = args.rows;
    if (token >= rowsOf(args.step, args.dim) || r >= cols) return;
    const float* route = (float*)((uint8_t*)args.routes + uint64_t(token) * args.routes_stride);
    uint8_t* products = rowAt((uint8_t*)args.products, token * top_k, 4 * cols);
    float4 sum = 0;
    _Pragma("unroll 8") for (uint rank = 0; rank < top_k; rank++)
    {
        const uint expert = uint(route[rank]);
        float4 v = loadFour(rowAt(products, rank, 4 * cols), cols, r);
        if (args.scale != nullptr) v *= args.scale[expert];
        if (args.bias != nullptr) v += loadFour(rowAt((uint8_t*)args.bias, expert, 4 * cols), cols, r);
        sum += route[top_k + rank] * v;
    }
    if (args.residual != nullptr)
        sum += loadFour(rowAt(args.residual, token, args.residual_stride), cols, r);
    storeFour(rowAt(args.y, token, args.y_stride), cols, r, sum);
}
