// Epilogue of a tensor core GEMM. Warps write their sums to shared memory, where the sums of all parts
// of the columns are added up, and the results are stored as rows of y. With SPLITS > 1, each block
// writes its sums to global memory, and the last block of a tile adds them up in order.

#if SPLITS > 1
#include "arrivals.cuh"
#endif

/// Synchronises the threads that store, as `__syncthreads` does for all threads.
DEVICE void syncWorkers()
{
#if GROUPS
    syncThreads<WORKERS>();
#else
    __syncthreads();
#endif
}

#define STORED_TILES (KSPLIT > 1 ? 1 : X_TILES < 4 ? X_TILES : 4) // tiles of x stored at once
SHARED float stored[WEIGHTS][KSPLIT][8 * STORED_TILES][ROWS + 4];

/// Returns four sums of a row of x over all parts.
DEVICE float4 total(uint matrix, uint i, uint r)
{
    float4 sum = *(float4*)&stored[matrix][0][i][r];
    UNROLL for (uint k = 1; k < KSPLIT; k++) sum += *(float4*)&stored[matrix][k][i][r];
    return sum;
}

/// Stores the results of weight rows r to r + 3 for row i of the tile, from their sums.
DEVICE void storeFour(ARGS, const TileOrigin& origin, uint i, uint r, float4 sum, float4 up)
{
    const uint row = origin.at + i;
    if (row >= origin.end || r >= args.rows) return;
    const float factor = inverseOf(i) / WEIGHT_FACTOR;
#if OUT_Q8
    storeResultsQ8(args, row, origin.plane, r, sum * factor, up * factor);
#else
    storeResults(args, row, origin.plane, r, sum * factor, up * factor);
#endif
}

#if SPLITS > 1

#define TILE_SUMS (BATCH * ROWS)

/// Returns the address of four sums of a split of the block's tile.
DEVICE float4* partialAt(const TileArguments& args, uint split, uint matrix, uint i, uint r)
{
    const uint64_t tile = blockIdx.x + uint64_t(gridDim.x) * blockIdx.y;
    const uint64_t at = (tile * SPLITS + split) * WEIGHTS + matrix;
    return (float4*)(args.product.partial + at * TILE_SUMS + i * ROWS + r);
}

DEVICE float4 totalOfSplits(const TileArguments& args, uint matrix, uint i, uint r)
{
    float4 sum = *partialAt(args, 0, matrix, i, r);
    UNROLL for (uint k = 1; k < SPLITS; k++) sum += *partialAt(args, k, matrix, i, r);
    return sum;
}

/// Adds up the sums of all splits and stores the results, if this block is the last of them.
DEVICE void mergeSplits(
    const TileArguments& args, const TileOrigin& origin, uint first, uint thread)
{
    uint* arrived = args.product.arrived + blockIdx.x + gridDim.x * blockIdx.y;
    if (!arrivesLast(arrived, SPLITS, thread)) return;
    const uint rows = min(BATCH, origin.end - origin.at);
    for (uint t = thread; t < rows * (ROWS / 4); t += THREADS)
    {
        const uint i = t / (ROWS / 4), r = t % (ROWS / 4) * 4;
        const float4 sum = totalOfSplits(args, 0, i, r);
        const float4 up = WEIGHTS > 1 ? totalOfSplits(args, WEIGHTS - 1, i, r) : sum;
        storeFour(args.product, origin, i, first + r, sum, up);
    }
}

#endif

/// Writes the sums of STORED_TILES tiles of x, starting at `first`, to shared memory.
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
DEVICE void storeTile(
    const TileArguments& args, const Sums& sums, const TileOrigin& origin, uint first, uint thread)
{
    const uint warp = thread / SUBGROUP / KSPLIT;
    UNROLL for (uint tile = 0; tile < X_TILES; tile += STORED_TILES)
    {
        if (origin.at + 8 * tile >= origin.end) break;
        syncWorkers();
        shareSums(sums, tile, warp, origin.part, origin.lane);
        syncWorkers();
        for (uint t = thread; t < 8 * STORED_TILES * (ROWS / 4); t += WORKERS)
        {
            const uint i = t / (ROWS / 4), r = t % (ROWS / 4) * 4;
            const float4 sum = total(0, i, r), up = total(WEIGHTS - 1, i, r);
#if SPLITS > 1
            *partialAt(args, blockIdx.z, 0, 8 * tile + i, r) = sum;
            if (WEIGHTS > 1) *partialAt(args, blockIdx.z, WEIGHTS - 1, 8 * tile + i, r) = up;
#else
            storeFour(args.product, origin, 8 * tile + i, first + r, sum, up);
#endif
        }
    }
#if SPLITS > 1
    mergeSplits(args, origin, first, thread);
#endif
}
