// Elementwise ops, four columns per thread.
//   OP        the op, an ElementwiseOp
//   RUN       columns that a gate scales, in GATE_RUNS
//   SOFTPLUS  gates are softplus of b, not sigmoid
//   Q8        rows of y are 8-bit blocks (q8.cuh)

#include "arguments.h"

using Arguments = ElementwiseArguments;

#include "arguments/elementwise_op.h"
#include "step.cuh"
#include "floats.cuh"
#include "activation.cuh"
#include "decay.cuh"
#include "q8.cuh"

DEVICE float gateOf(float g)
{
#if SOFTPLUS
    return softplus(g);
#else
    return sigmoid(g);
#endif
}

KERNEL(elementwise, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint col = 4 * (group.x * THREADS + thread), row = group.y;
    if (row >= rowsOf(args.step, args.dim) || col >= args.cols) return;

#if OP == SELECT
    uint8_t* a = rowAt(args.a, args.step->output_rows[row], args.a_stride);
#else
    uint8_t* a = rowAt(args.a, row, args.a_stride);
#endif
    float4 v = loadFour(a, args.cols, col);
#if OP == ADD || OP == GLU || OP == GATE
    float4 w = loadFour(rowAt(args.b, row, args.b_stride), args.cols, col);
#endif
#if OP == ADD
    v += w;
#elif OP == SCALE
    v *= args.first;
#elif OP == SOFTCAP
    // tanh of larger numbers may be inf / inf.
    v = args.first * tanh(clamp(v / args.first, -15.0f, 15.0f));
#elif OP == GLU
    UNROLL for (uint i = 0; i < 4; i++)
        v[i] = activate(args.activation, v[i], w[i], args.first, args.second);
#elif OP == ACTIVATE
    UNROLL for (uint i = 0; i < 4; i++)
        v[i] = activate(args.activation, v[i], 1.0f, args.first, args.second);
#elif OP == GATE && SOFTPLUS
    UNROLL for (uint i = 0; i < 4; i++) v[i] *= softplus(w[i]);
#elif OP == GATE
    v /= 1.0f + exp(-w);
#elif OP == GATE_ROW
    v *= gateOf(*(float*)rowAt(args.b, row, args.b_stride));
#elif OP == GATE_RUNS
    const float* gates = (float*)rowAt(args.b, row, args.b_stride);
    UNROLL for (uint i = 0; i < 4; i++)
        v[i] *= gateOf(gates[min(col + i, args.cols - 1) / RUN]);
#endif

    uint8_t* y = rowAt(args.y, row, args.y_stride);
#if Q8
    storeQ8(y, args.cols, col, v);
#else
    storeFour(y, args.cols, col, v);
#endif
}
