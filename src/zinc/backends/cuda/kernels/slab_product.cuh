// The product of a slab of weights and a slab of x, whose rows lie in shared memory in the layout of
// half_rows.cuh.

#pragma once

#include "half_rows.cuh"
#include "weight_slabs.cuh"

/// Multiplies a slab of weights with the first TILES tiles of a slab of x in shared memory.
template <uint TILES>
DEVICE void multiplyFirst(const WeightSlab& weights, const uint8_t* x, uint lane, Sums& sums)
{
    // Of the four matrices that are loaded at once, two are the chunks of a step in one group of rows,
    // and two in the next group.
    const uint8_t* at = x + lane / 16 * GROUP_BYTES + lane / 8 % 2 * 128 + lane % 8 * 16;
    UNROLL for (uint step = 0; step < STEPS; step++)
    {
        uint a[WEIGHTS * ROW_TILES][4];
        UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++) weights.fragment(t, step, a[t]);
        UNROLL for (uint j = 0; j < TILES; j += 2)
        {
            uint b[4];
            loadMatrices(b, at + j * GROUP_BYTES + step * 256);
            UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++)
            {
                multiplyTiles(sums.d[t][j], a[t], b[0], b[1]);
                multiplyTiles(sums.d[t][j + 1], a[t], b[2], b[3]);
            }
        }
    }
}

/// Multiplies a slab of weights with at least `tiles` tiles of a slab of x.
template <uint TILES = X_TILES>
DEVICE void multiplySlab(
    const WeightSlab& weights, const uint8_t* x, uint lane, Sums& sums, uint tiles)
{
    constexpr uint FEWER = TILES - (TILES > 4 ? 4 : 2);
    if constexpr (FEWER > 0)
        if (tiles <= FEWER) return multiplySlab<FEWER>(weights, x, lane, sums, tiles);
    multiplyFirst<TILES>(weights, x, lane, sums);
}
