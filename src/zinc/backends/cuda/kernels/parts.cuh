// The matrices of a launch (GemvArguments), and the epilogue of their products.
//   PARTS       matrices with their own output
//   ACTIVATION  the ActivationFn of a gated product

#pragma once

#include "activation.cuh"
#include "step.cuh"

/// The matrix of the rows of a tile.
DEVICE const GemvPart& partOf(ARGS, uint tile)
{
    uint i = 0;
    if (PARTS > 1 && tile >= args.second.first_tile) i = 1;
    if (PARTS > 2 && tile >= args.third.first_tile) i = 2;
    if (PARTS > 3 && tile >= args.fourth.first_tile) i = 3;
    return (&args.first)[i];
}

/// The gated product of `row` with row b of x, from its sums over both matrices.
DEVICE float gated(ARGS, const GemvPart& part, uint row, uint b, float gate, float up)
{
    if (part.bias != nullptr) gate += part.bias[row];
    if (part.up_bias != nullptr) up += part.up_bias[row];
    const float y = activate(ACTIVATION, gate, up, args.alpha, args.limit);
    return part.factor == nullptr ? y : y * sigmoid(*(float*)rowAt(part.factor, b, part.factor_stride));
}
