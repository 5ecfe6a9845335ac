// Groups of 256 columns of weights as operands of tensor cores in registers.
//
// A group has two slabs of 128 columns (half_rows.cuh, half_weights.cuh): lane c of a quad has units
// c and c + 4 of the weight rows lane / 4 and lane / 4 + 8.
//   COLS             columns of a row
//   FOLD_MINIMUMS    1: operands are weights less their minimums (whole_scales.cuh)

#pragma once

#include "half_rows.cuh"
#include "half_weights.cuh"

#ifndef FOLD_MINIMUMS
#define FOLD_MINIMUMS 0
#endif

#define GROUP_UNITS 8
#define WHOLE_SCALES (FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K) // see whole_scales.cuh
#define UNITS ((COLS + 31) / 32) // of a row

/// Where a lane's weights of a group are: in two rows of a matrix.
struct GroupPlace
{
    Matrix w;
    uint rows[2], group;

    /// The number of the group in the first row, for formats whose blocks are groups.
    MEMBER uint block() const { return rows[0] * (UNITS / GROUP_UNITS) + group; }

    /// Blocks from the first row to row h. It is a constant where the rows of tiles are.
    MEMBER uint blocksTo(uint h) const { return (rows[h] - rows[0]) * (UNITS / GROUP_UNITS); }
};

/// Prefetches the 128 bytes at an address into L2.
DEVICE void prefetchL2(const void* p)
{
#ifndef ZINC_EMULATED
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

/// Returns 1 / x, with an error of one unit in the last place.
DEVICE float approximateInverse(float x)
{
#ifdef ZINC_EMULATED
    return 1.0f / x;
#else
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#endif
}

#if WHOLE_SCALES
#include "whole_scales.cuh"
#else

/// A lane's units of a group of weights, as they are stored: units c and c + 4 of two rows.
struct StoredGroup
{
    StoredUnit units[2][2];

    /// Loads the units c + 4 i.
    MEMBER void load(const GroupPlace& place, uint c, uint i)
    {
        const uint unit = min(place.group * GROUP_UNITS + 4 * i + c, UNITS - 1);
        UNROLL for (uint h = 0; h < 2; h++)
            units[h][i] = loadStored(place.w, place.rows[h] * UNITS + unit);
    }
};

DEVICE void prefetchGroup(const GroupPlace&) {}

/// The operands of a lane's units.
struct GroupWeights
{
    uint c;
    HalfUnit units[2];

    MEMBER GroupWeights(const StoredGroup& w, uint c) : c(c) {}

    /// Decodes the units c + 4 i. Rows and groups are whole blocks of a format.
    MEMBER void prepare(const StoredGroup& w, uint i)
    {
        UNROLL for (uint h = 0; h < 2; h++) units[h] = HalfUnit(w.units[h][i], 4 * i + c);
    }

    /// Returns the operand of a word of the units c + 4 i, which `prepare` has decoded.
    MEMBER void fragment(const StoredGroup& w, uint i, uint word, uint (&a)[4]) const
    {
        units[0].pairs(word, a[0], a[2]);
        units[1].pairs(word, a[1], a[3]);
    }

    /// Returns what a product of row h is multiplied by.
    MEMBER float factor(uint h) const { return 1.0f / WEIGHT_FACTOR; }

    /// Returns the inverse of the factor of row h.
    MEMBER float inverse(uint h) const { return WEIGHT_FACTOR; }
};

#endif
