// GEMM over quantised weights on tensor cores. A block computes a tile of ROWS weight rows by BATCH
// rows of x. Each warp takes 16 ROW_TILES weight rows (of each matrix of a gated product) by all
// rows of x; KSPLIT warps split the columns of the same rows, slab by slab.
//   EXPERTS   rows of x are the slots of an expert (group.z), and SPREAD blocks share an expert
//   STAGES    0: each warp converts rows of 8-bit blocks itself, which suits few rows of x.
//             Otherwise half_rows has converted them, and slabs of columns are copied to shared
//             memory, STAGES deep.
//   DEEP      slabs of weights that a warp has in flight

#if EXPERTS
#include "expert_rows.cuh"
using TileArguments = ExpertTileArguments;
#else
#include "linear_rows.cuh"
using TileArguments = LinearTileArguments;
#endif

#include "half_rows.cuh"
#include "half_weights.cuh"

#define THREADS (WARPS * SUBGROUP)
#define BATCH (8 * X_TILES)
#define WARP_ROWS (16 * ROW_TILES)
#define ROWS (WARP_ROWS * WARPS / KSPLIT)
#define WEIGHTS (PRODUCT == GLU ? 2 : 1) // matrices multiplied at once

/// The place of a warp in its tile: weight rows from `first` on of a plane, rows of x from `at` to
/// `end`, and one of KSPLIT parts of the columns.
struct TileOrigin
{
    uint first, plane, at, end;
    uint part, lane;

    MEMBER uint weightRow(ARGS, uint tile, uint half) const
    {
        uint row = first + 16 * tile + 8 * half + lane / 4;
        return plane * args.rows + min(row, args.rows - 1);
    }
};

/// The sums of a warp: D of each pair of a 16-row tile of weights and an 8-row tile of x.
struct Sums
{
    float d[WEIGHTS * ROW_TILES][X_TILES][4];

    MEMBER void clear()
    {
        UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++)
            UNROLL for (uint j = 0; j < X_TILES; j++)
                UNROLL for (uint e = 0; e < 4; e++) d[t][j][e] = 0;
    }
};

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

/// Waits for what earlier kernels write, after the first weights have been loaded. Which experts
/// are needed is known only after waiting.
DEVICE void waitForRows()
{
#if !EXPERTS
    waitForInputs();
#endif
}

#if STAGES
#include "staged_rows.cuh"
#else
#include "direct_rows.cuh"
#endif

#define STORED_TILES (KSPLIT > 1 ? 1 : X_TILES < 4 ? X_TILES : 4) // tiles of x stored at once
SHARED float stored[WEIGHTS][KSPLIT][8 * STORED_TILES][ROWS + 4];

/// Returns four sums of a row of x over all parts.
DEVICE float4 total(uint matrix, uint i, uint r)
{
    float4 sum = *(float4*)&stored[matrix][0][i][r];
    UNROLL for (uint k = 1; k < KSPLIT; k++) sum += *(float4*)&stored[matrix][k][i][r];
    return sum;
}

DEVICE void storeFour(ARGS, uint i, uint plane, uint r, float4 sum, float4 up)
{
#if OUT_Q8
    storeResultsQ8(args, i, plane, r, sum, up);
#else
    UNROLL for (uint j = 0; j < 4; j++)
        if (r + j < args.rows) storeResult(args, i, plane, r + j, sum[j], up[j]);
#endif
}

/// Puts the sums of STORED_TILES tiles of x, from `first` on, into shared memory.
DEVICE void shareSums(const Sums& sums, uint first, uint warp, uint part, uint lane)
{
    UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++)
        UNROLL for (uint j = 0; j < STORED_TILES; j++)
            UNROLL for (uint e = 0; e < 4; e++)
            {
                const uint i = 8 * j + 2 * (lane % 4) + e % 2;
                const uint r = warp * WARP_ROWS + 16 * (t % ROW_TILES) + lane / 4 + 8 * (e / 2);
                stored[t / ROW_TILES][part][i][r] = sums.d[t][first + j][e];
            }
}

/// Stores the results of the block's tile, whose weight rows start at `first`.
DEVICE void storeTile(ARGS, const Sums& sums, const TileOrigin& origin, uint first, uint thread)
{
    const uint warp = thread / SUBGROUP / KSPLIT;
    UNROLL for (uint tile = 0; tile < X_TILES; tile += STORED_TILES)
    {
        if (origin.at + 8 * tile >= origin.end) break;
        __syncthreads();
        shareSums(sums, tile, warp, origin.part, origin.lane);
        __syncthreads();
        for (uint t = thread; t < 8 * STORED_TILES * (ROWS / 4); t += THREADS)
        {
            const uint row = t / (ROWS / 4), i = origin.at + 8 * tile + row;
            const uint r = t % (ROWS / 4) * 4;
            if (i >= origin.end || first + r >= args.rows) continue;
            const float factor = inverseOf(8 * tile + row) / WEIGHT_FACTOR;
            const float4 up = total(WEIGHTS - 1, row, r) * factor;
            storeFour(args, i, origin.plane, first + r, total(0, row, r) * factor, up);
        }
    }
}

DEVICE void computeTile(const TileArguments& args, TileOrigin origin, uint first, uint thread)
{
    Sums sums;
    sums.clear();
    accumulate(args, origin, sums, thread);
    storeTile(args.product, sums, origin, first, thread);
}

EARLY_KERNEL(gemm_mma, TileArguments)
{
    const uint thread = threadIdx.x, warp = thread / SUBGROUP, first = blockIdx.x * ROWS;
    TileOrigin origin;
    origin.first = first + warp / KSPLIT * WARP_ROWS;
    origin.plane = blockIdx.z;
    origin.part = warp % KSPLIT;
    origin.lane = thread % SUBGROUP;
#if EXPERTS
    waitForInputs();
    const float* starts = args.product.starts;
    origin.end = uint(starts[origin.plane + 1]);
    const uint begin = uint(starts[origin.plane]) + blockIdx.y * BATCH;
    if (begin >= origin.end) return;
    loadFormatTables(args.product.w, thread, THREADS);
    for (uint at = begin; at < origin.end; at += SPREAD * BATCH)
    {
        origin.at = at;
        computeTile(args, origin, first, thread);
        __syncthreads();
    }
#else
    origin.at = blockIdx.y * BATCH;
    origin.end = rowCount(args.product);
    if (origin.at >= origin.end)
    {
        waitForInputs();
        return;
    }
    loadFormatTables(args.product.w, thread, THREADS);
    computeTile(args, origin, first, thread);
#endif
}
