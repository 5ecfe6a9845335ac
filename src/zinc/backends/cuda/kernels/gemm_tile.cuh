// The tile that a block of a tensor core GEMM computes: ROWS weight rows by BATCH rows of x. Each warp
// takes 16 ROW_TILES weight rows (of each matrix of a gated product) by all rows of x.
//   GROUPS   1: one more warp group, besides the WARPS warps, copies rows
//   KSPLIT   warps that split the columns of the same rows
// Include it after the file that defines SLAB, the columns that are staged at once.

#pragma once

#define WORKERS (WARPS * SUBGROUP) // threads that multiply and store
#if GROUPS
#define THREADS (WORKERS + GROUP_THREADS)
#else
#define THREADS WORKERS
#endif
#define BATCH (8 * X_TILES)
#define WARP_ROWS (16 * ROW_TILES)
#define ROWS (WARP_ROWS * WARPS / KSPLIT)
#define WEIGHTS (PRODUCT == GLU ? 2 : 1) // matrices multiplied at once

DEVICE uint slabCount(ARGS) { return (COLUMNS + SLAB - 1) / SLAB; }

/// The work of a warp in its tile: weight rows of a plane, starting at `first`, rows of x from `at` to
/// `end`, slabs of columns from `slab` to `last_slab`, and one of KSPLIT parts of them.
struct TileOrigin
{
    uint first, plane, at, end;
    uint slab, last_slab;
    uint part, lane;

    MEMBER uint weightRow(ARGS, uint tile, uint half) const
    {
        uint row = first + 16 * tile + 8 * half + lane / 4;
        return plane * args.rows + min(row, args.rows - 1);
    }
};

/// The sums of a warp: D of `multiplyTiles` for each pair of a 16-row tile of weights and an 8-row tile
/// of x.
struct Sums
{
    float d[WEIGHTS * ROW_TILES][X_TILES][4];

    MEMBER void clear()
    {
        UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++)
            UNROLL for (uint j = 0; j < X_TILES; j++)
                UNROLL for (uint e = 0; e < 4; e++) d[t][j][e] = 0;
    }

    MEMBER void add(const Sums& other)
    {
        UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++)
            UNROLL for (uint j = 0; j < X_TILES; j++)
                UNROLL for (uint e = 0; e < 4; e++) d[t][j][e] += other.d[t][j][e];
    }
};

/// Returns the work of a warp in a tile of weight rows starting at `first`. Rows of x and columns are
/// unset.
DEVICE TileOrigin warpOrigin(uint first, uint thread)
{
    TileOrigin origin;
    origin.first = first + thread / SUBGROUP / KSPLIT * WARP_ROWS;
    origin.part = thread / SUBGROUP % KSPLIT;
    origin.lane = thread % SUBGROUP;
    return origin;
}

#if !EXPERTS
/// Returns the work of a warp in the tile of the block: weight rows of group.x, rows of x of group.y,
/// columns of split group.z.
DEVICE TileOrigin linearOrigin(ARGS, uint thread)
{
    const uint slabs = slabCount(args), each = (slabs + SPLITS - 1) / SPLITS;
    TileOrigin origin = warpOrigin(blockIdx.x * ROWS, thread);
    origin.slab = min(blockIdx.z * each, slabs);
    origin.last_slab = min(origin.slab + each, slabs);
    origin.plane = 0;
    origin.at = blockIdx.y * BATCH;
    origin.end = rowCount(args);
    return origin;
}
#endif
