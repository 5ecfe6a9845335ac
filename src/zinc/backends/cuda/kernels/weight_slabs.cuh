// Slabs of weights of a tile (gemm_tile.cuh), which each lane loads and decodes for its warp.

#pragma once

#include "half_weights.cuh"

/// A lane's units of a slab of weights, as they are stored.
struct StoredSlab
{
    StoredUnit units[WEIGHTS * ROW_TILES][2];

    MEMBER void load(ARGS, const TileOrigin& origin, uint slab)
    {
        const uint n = (COLUMNS + 31) / 32, unit = min(4 * slab + origin.lane % 4, n - 1);
        UNROLL for (uint t = 0; t < ROW_TILES; t++)
            UNROLL for (uint half = 0; half < 2; half++)
            {
                const uint at = origin.weightRow(args, t, half) * n + unit;
                units[t][half] = loadStored(args.w, at);
#if PRODUCT == GLU
                units[ROW_TILES + t][half] = loadStored(shifted(args.w, args.up), at);
#endif
            }
    }
};

/// The same units as operands.
struct WeightSlab
{
    HalfUnit units[WEIGHTS * ROW_TILES][2];

    MEMBER WeightSlab(const StoredSlab& stored, uint slab, uint lane)
    {
        // Rows are whole blocks of a format, so the unit's place in its block is that in its row.
        const uint unit = 4 * slab + lane % 4;
        UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++)
            UNROLL for (uint half = 0; half < 2; half++)
                units[t][half] = HalfUnit(stored.units[t][half], unit);
    }

    MEMBER void fragment(uint tile, uint step, uint (&a)[4]) const
    {
        units[tile][0].pairs(step, a[0], a[2]);
        units[tile][1].pairs(step, a[1], a[3]);
    }
};
