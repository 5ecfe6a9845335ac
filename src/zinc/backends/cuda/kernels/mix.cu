// mix: y_i = weight * sum over j of c_ij x_j for runs of columns x_j, plus a residual. Each thread
// computes four columns.
//   Q8  rows of y are 8-bit blocks (q8.cuh)

#include "arguments.h"

using Arguments = MixArguments;

#include "step.cuh"
#include "floats.cuh"
#include "q8.cuh"

KERNEL(mix, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint col = 4 * (group.x * THREADS + thread), row = group.y;
    if (row >= rowsOf(args.step, args.dim) || col >= args.cols) return;

    uint run = col / args.width, first = col % args.width;
    uint8_t* x = rowAt(args.x, row, args.x_stride);
    float* c = (float*)rowAt(args.coefficients, row, args.coefficients_stride) + run * args.n_inputs;
    float4 v = 0.0f;
    for (uint j = 0; j < args.n_inputs; j++)
    {
        float factor = args.coefficients != nullptr ? c[j] : 1.0f;
        v += factor * loadFour(x, args.n_inputs * args.width, j * args.width + first);
    }
    if (args.weight != nullptr) v *= loadFour(args.weight, args.width, first);
    if (args.residual != nullptr)
        v += loadFour(rowAt(args.residual, row, args.residual_stride), args.cols, col);

    uint8_t* y = rowAt(args.y, row, args.y_stride);
#if Q8
    storeQ8(y, args.cols, col, v);
#else
    storeFour(y, args.cols, col, v);
#endif
}
