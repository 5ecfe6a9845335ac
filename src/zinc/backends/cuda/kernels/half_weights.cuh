// Weights of quantised formats as float16 operands of tensor cores, decoded in registers.
//
// Lane c of a quad decodes whole units: in a slab of 128 columns unit c of the weight rows lane / 4
// and lane / 4 + 8. Word s of a unit has the columns of step s (half_rows.cuh), so operands need
// neither shuffles nor shared memory.

#pragma once

#include "formats.cuh"
#include "half_pairs.cuh"

#define WEIGHT_FACTOR 64.0f // keeps scales of small weights above the subnormal numbers

/// A unit of weights times WEIGHT_FACTOR: signed bytes, and their scales and minimums as pairs.
struct HalfUnit
{
    uint q[8];
    uint d[1 + HALVES], m[1 + HALVES];

    HalfUnit() = default;

    MEMBER explicit HalfUnit(const Unit& unit)
    {
        UNROLL for (uint i = 0; i < 8; i++) q[i] = unit.q[i];
        UNROLL for (uint h = 0; h < 1 + HALVES; h++)
        {
            d[h] = twice(WEIGHT_FACTOR * unit.d[h]);
            m[h] = twice(-WEIGHT_FACTOR * unit.m[h]);
        }
    }

    /// Returns the four weights of a word in two pairs.
    MEMBER void pairs(uint word, uint& low, uint& high) const
    {
        const uint half = HALVES ? word / 4 : 0;
        halvesOfBytes(q[word], low, high);
#if MINIMUMS
        low = addProductOfHalves(low, d[half], m[half]);
        high = addProductOfHalves(high, d[half], m[half]);
#else
        low = multiplyHalves(low, d[half]);
        high = multiplyHalves(high, d[half]);
#endif
    }
};
