// RMS norm of each group of `group` columns (group.x) of each row (group.y), times a weight. A
// workgroup keeps one group in registers, FOURS float4s per thread.
//   GATED  1: multiply by silu(other); 2: multiply x by silu(other) first, and the weight has an
//          element for each column of the row; 0: add the residual `other`
//   CUT    no norm: subtract the mean and `eps` times the standard deviation, and set negative results to 0
//   LIKE   scale to the RMS of the row `other`; `eps` is the least mean square of x
//   MEAN   layer norm: subtract the mean first. The weight, and the bias in `other`, have an element
//          for each column of the row
//   Q8     rows of y are 8-bit blocks (q8.cuh)
//   HALVES also store the rows, each one group, as float16 operands of tensor cores (half_rows.cuh)

#ifndef LIKE
#define LIKE 0
#endif
#include "arguments.h"

#if HALVES
using Arguments = HalfNormArguments;
#else
using Arguments = NormArguments;
#endif

#include "step.cuh"
#include "reduce.cuh"
#include "floats.cuh"
#include "activation.cuh"
#include "q8.cuh"
#if HALVES
#include "half_rows.cuh"
#endif

EARLY_KERNEL(norm, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint n = args.group, first = group.x * n;
#if MEAN || GATED == 2
    uint8_t* weights = args.weight + 4 * first;
#else
    uint8_t* weights = args.weight;
#endif
    float4 weight[FOURS];
    UNROLL for (uint i = 0; i < FOURS; i++)
    {
        uint col = 4 * (i * THREADS + thread);
        weight[i] = 1.0f;
        if (args.weight != nullptr && col < n) weight[i] = loadFour(weights, n, col);
    }
    const bool exists = group.y < rowsOf(args.step, args.dim);
    waitForInputs();
    if (!exists) return;
    uint8_t* x = rowAt(args.x, group.y, args.x_stride) + 4 * first;
    uint8_t* other = rowAt(args.other, group.y, args.other_stride) + (LIKE ? 0 : 4 * first);
    // Issue all loads before the barrier of the sum.
    float4 v[FOURS], w[FOURS];
    UNROLL for (uint i = 0; i < FOURS; i++)
    {
        uint col = 4 * (i * THREADS + thread);
        v[i] = col < n ? loadFour(x, n, col) : 0.0f;
        w[i] = 0.0f;
        if (args.other != nullptr && col < n) w[i] = loadFour(other, n, col);
    }
    float sum = 0;
#if GATED == 2
    UNROLL for (uint i = 0; i < FOURS; i++) v[i] *= w[i] / (1.0f + exp(-w[i]));
#endif
#if MEAN || CUT
    UNROLL for (uint i = 0; i < FOURS; i++) sum += v[i].x + v[i].y + v[i].z + v[i].w;
    float mean = sumOfGroup(sum, thread) / float(n);
    __syncthreads(); // before the next sum reuses the shared memory
    sum = 0;
    UNROLL for (uint i = 0; i < FOURS; i++)
        UNROLL for (uint j = 0; j < 4; j++)
            v[i][j] = 4 * (i * THREADS + thread) + j < n ? v[i][j] - mean : 0.0f;
#endif
    UNROLL for (uint i = 0; i < FOURS; i++) sum += dot(v[i], v[i]);
#if LIKE || CUT
    float square = sumOfGroup(sum, thread) / float(n);
#endif
#if LIKE
    __syncthreads(); // before the next sum reuses the shared memory
    sum = 0;
    UNROLL for (uint i = 0; i < FOURS; i++) sum += dot(w[i], w[i]);
    float scale = sqrt(sumOfGroup(sum, thread) / float(n) / max(square, args.eps));
#elif HALVES
    float top = 0;
    UNROLL for (uint i = 0; i < FOURS; i++) top = max(top, largestOf(abs(v[i] * weight[i])));
    const float2 found = sumAndMaxOfGroup(sum, top, thread);
    float scale = rsqrt(found.x / float(n) + args.eps);
    const RowFactor factor = factorOfScale(scale * found.y / 127.0f);
    if (thread == 0) args.inverses[group.y] = factor.inverse;
#elif !CUT
    float scale = rsqrt(sumOfGroup(sum, thread) / float(n) + args.eps);
#endif

    uint8_t* y = rowAt(args.y, group.y, args.y_stride);
    UNROLL for (uint i = 0; i < FOURS; i++)
    {
        uint col = 4 * (i * THREADS + thread);
        if (col >= n) break;
#if CUT
        float4 r;
        UNROLL for (uint j = 0; j < 4; j++) r[j] = max(v[i][j] - args.eps * sqrt(square), 0.0f);
#else
        float4 r = v[i] * scale * weight[i];
#endif
#if GATED == 1
        r *= w[i] / (1.0f + exp(-w[i]));
#elif !GATED && !LIKE
        r += w[i];
#endif
#if HALVES
        storeHalves(args.halves, args.half_rows, group.y, col, r * factor.factor);
#endif
#if Q8
        storeQ8(y, args.cols, first + col, r);
#else
        storeFour(y + 4 * first, n, col, r);
#endif
    }
}
