// Weights of 256 columns (a group) as tensor core operands in registers.
//
// A group has two slabs of 128 columns (half_rows.cuh, half_weights.cuh), or 8 units of 32 columns.
// Lane c of a quad holds units c and c + 4 of the weight rows lane / 4 and lane / 4 + 8.
//   COLS             columns of a row
//   FOLD_MINIMUMS    1: operands include the minimums of weights (whole_scales.cuh)

#pragma once

#include "half_rows.cuh"
#include "half_weights.cuh"

#ifndef FOLD_MINIMUMS
#define FOLD_MINIMUMS 0
#endif

#define GROUP_UNITS 8
#define WHOLE_SCALES (FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K) // see whole_scales.cuh
#define UNITS ((COLS + 31) / 32) // units per row

/// The location of a lane's weights of a group, in two rows of a matrix.
struct GroupPlace
{
    Matrix w;
    uint rows[2], group;
    uint64_t second = 0; // bytes from the matrix of the first row to that of the second

    /// The block index of the group in the first row, for formats with blocks of 256 columns.
    MEMBER uint block() const { return rows[0] * (UNITS / GROUP_UNITS) + group; }

    /// The distance from the first row to row h in blocks; a constant unless rows are clamped.
    MEMBER uint blocksTo(uint h) const { return (rows[h] - rows[0]) * (UNITS / GROUP_UNITS); }

    /// Moves an address from the matrix of the first row to that of row h.
    template <typename T> MEMBER const T* inMatrix(const T* p, uint h) const
    {
        return h ? (const T*)((const uint8_t*)p + second) : p;
    }
};

/// Returns 1 / x, with an error of one unit in the last place.
DEVICE float approximateInverse(float x)
{
#ifdef ZINC_EMULATED
    return 1.0f / x;
#else
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#endif
}

#if WHOLE_SCALES
#include "whole_scales.cuh"
#else

/// A lane's units of a group of weights as stored in memory: units c and c + 4 of two rows.
struct StoredGroup
{
    StoredUnit units[2][2];

    /// Loads the units c + 4 i.
    MEMBER void load(const GroupPlace& place, uint c, uint i)
    {
        const uint unit = min(place.group * GROUP_UNITS + 4 * i + c, UNITS - 1);
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const Matrix w = h ? shifted(place.w, place.second) : place.w;
            units[h][i] = loadStored(w, place.rows[h] * UNITS + unit);
        }
    }
};

/// The MMA operands of a lane's units.
struct GroupWeights
{
    uint c;
    HalfUnit units[2];

    MEMBER GroupWeights(const StoredGroup& w, uint c) : c(c) {}

    /// Decodes the units c + 4 i. Rows and groups contain whole blocks of the format.
    MEMBER void prepare(const StoredGroup& w, uint i)
    {
        UNROLL for (uint h = 0; h < 2; h++) units[h] = HalfUnit(w.units[h][i], 4 * i + c);
    }

    /// Returns the MMA operand of one word of the units c + 4 i. Call `prepare` first.
    MEMBER void fragment(const StoredGroup& w, uint i, uint word, uint (&a)[4]) const
    {
        units[0].pairs(word, a[0], a[2]);
        units[1].pairs(word, a[1], a[3]);
    }

    /// Returns the factor that scales the products of row h.
    MEMBER float factor(uint h) const { return 1.0f / WEIGHT_FACTOR; }

    /// Returns 1 / `factor(h)`.
    MEMBER float inverse(uint h) const { return WEIGHT_FACTOR; }
};

#endif
