// Rows that linear, linear_glu and head_linear read and write. Each plane (head) of the weight has
// its own columns of x and y.
//   PRODUCT  a ProductKind
//   OUT_Q8   rows of y are 8-bit blocks

#include "arguments.h"

using Arguments = LinearArguments;

#include "arguments/product_kind.h"
#include "step.cuh"
#include "formats.cuh"
#include "activation.cuh"
#include "q8.cuh"

#define COLUMNS (COLS > 0 ? uint(COLS) : args.cols)

/// Returns the number of rows of x in this step.
DEVICE uint rowCount(ARGS) { return rowsOf(args.step, args.dim); }

DEVICE uint8_t* rowAt(ARGS, uint i, uint plane)
{
    return args.x + uint64_t(i) * args.x_stride + 4 * plane * COLUMNS;
}

/// Returns element r of a plane of row i of y: adds bias and residual, or applies the gate. sum, up:
/// dot products of the row of x with the weight and, for GLU, with the up weight.
DEVICE float result(ARGS, uint i, uint plane, uint r, float sum, float up)
{
    uint col = plane * args.rows + r;
    if (args.bias != nullptr) sum += args.bias[r];
#if PRODUCT == LINEAR
    if (args.residual != nullptr)
        sum += *(float*)(args.residual + uint64_t(i) * args.residual_stride + 4 * col);
    return sum;
#else
#if PRODUCT == GLU
    float gate = sum;
    if (args.up_bias != nullptr) up += args.up_bias[r];
#else
    float gate = *(float*)((uint8_t*)args.up + uint64_t(i) * args.residual_stride + 4 * col);
    up = sum;
#endif
    return activate(args.activation, gate, up, args.alpha, args.limit);
#endif
}

DEVICE void storeResult(ARGS, uint i, uint plane, uint r, float sum, float up)
{
    uint64_t at = uint64_t(i) * args.y_stride + 4 * (plane * args.rows + r);
    *(float*)(args.y + at) = result(args, i, plane, r, sum, up);
}

/// Stores elements r to r + 3 of a plane of row i of y, except those past the last row of the weight.
DEVICE void storeResults(ARGS, uint i, uint plane, uint r, float4 sum, float4 up)
{
    float* y = (float*)(args.y + uint64_t(i) * args.y_stride) + plane * args.rows + r;
    if (r + 4 <= args.rows && uint64_t(y) % 16 == 0)
    {
        float4 v;
        UNROLL for (uint j = 0; j < 4; j++) v[j] = result(args, i, plane, r + j, sum[j], up[j]);
        storeAligned<16>((float4*)y, v);
    }
    else
    {
        UNROLL for (uint j = 0; j < 4; j++)
            if (r + j < args.rows) y[j] = result(args, i, plane, r + j, sum[j], up[j]);
    }
}

/// Stores elements r to r + 3 as part of an 8-bit block (see storeQ8).
DEVICE void storeResultsQ8(ARGS, uint i, uint plane, uint r, float4 sum, float4 up)
{
    float4 v;
    UNROLL for (uint j = 0; j < 4; j++) v[j] = result(args, i, plane, r + j, sum[j], up[j]);
    storeQ8(args.y + uint64_t(i) * args.y_stride, args.rows, r, v);
}
