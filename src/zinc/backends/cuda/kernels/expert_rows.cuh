// Rows that products with experts read and write. A slot is one of the top_k experts of a token,
// and `order` lists the slots sorted by expert.
//   PRODUCT     a ProductKind
//   OUT_Q8      rows of y are 8-bit blocks
//   ACTIVATION  an ActivationFn; if undefined, the arguments state it

#include "arguments.h"

using Arguments = ExpertArguments;

#include "arguments/product_kind.h"
#include "step.cuh"
#include "formats.cuh"
#include "activation.cuh"
#include "q8.cuh"

#ifndef ACTIVATION
#define ACTIVATION args.activation
#endif
#define COLUMNS (COLS > 0 ? uint(COLS) : args.cols)

/// Returns the row of x for position i of `order`.
DEVICE uint8_t* rowAt(ARGS, uint i)
{
    uint slot = uint(args.order[i]);
    return args.x + uint64_t(slot / args.top_k) * args.x_stride + slot % args.top_k * args.x_run;
}

DEVICE float result(ARGS, uint slot, uint expert, uint r, float sum, float up)
{
    uint at = expert * args.rows + r;
    if (args.bias != nullptr) sum += args.bias[at];
#if PRODUCT == LINEAR
    return sum;
#elif PRODUCT == ACTIVATED
    return activate(ACTIVATION, sum, 1.0f, args.alpha, args.limit);
#else
#if PRODUCT == GLU
    float gate = sum;
    if (args.up_bias != nullptr) up += args.up_bias[at];
#else
    float gate = ((float*)args.up)[slot * args.rows + r];
    up = sum;
#endif
    return activate(ACTIVATION, gate, up, args.alpha, args.limit);
#endif
}

DEVICE uint8_t* outputAt(ARGS, uint slot)
{
    return args.y + uint64_t(slot / args.top_k) * args.y_stride + slot % args.top_k * args.y_run;
}

/// Stores element r of the row for position i of `order`, from its sums.
DEVICE void storeResult(ARGS, uint i, uint expert, uint r, float sum, float up)
{
    uint slot = uint(args.order[i]);
    ((float*)outputAt(args, slot))[r] = result(args, slot, expert, r, sum, up);
}

/// Stores elements r to r + 3 of that row, except those past the last.
DEVICE void storeResults(ARGS, uint i, uint expert, uint r, float4 sum, float4 up)
{
    uint slot = uint(args.order[i]);
    float* y = (float*)outputAt(args, slot) + r;
    if (r + 4 <= args.rows && uint64_t(y) % 16 == 0)
    {
        float4 v;
        UNROLL for (uint j = 0; j < 4; j++)
            v[j] = result(args, slot, expert, r + j, sum[j], up[j]);
        storeAligned<16>((float4*)y, v);
    }
    else
    {
        UNROLL for (uint j = 0; j < 4; j++)
            if (r + j < args.rows) y[j] = result(args, slot, expert, r + j, sum[j], up[j]);
    }
}

/// Stores elements r to r + 3 of that row as part of an 8-bit block (see storeQ8).
DEVICE void storeResultsQ8(ARGS, uint i, uint expert, uint r, float4 sum, float4 up)
{
    uint slot = uint(args.order[i]);
    float4 v;
    UNROLL for (uint j = 0; j < 4; j++)
        v[j] = result(args, slot, expert, r + j, sum[j], up[j]);
    storeQ8(outputAt(args, slot), args.rows, r, v);
}
