// Grouped GEMM of many slots with their selected experts, on tensor cores. A block multiplies the slots
// of an expert (group.z), BATCH at a time, with PASSES tiles of ROWS weight rows each (group.x); SPREAD
// blocks (group.y) share the slots. Slabs of the rows that half_rows has converted are copied to shared
// memory, STAGES deep.
//   DEEP    slabs of weights that a warp has in flight
//   PASSES  if more than 1, STAGES has all slabs, which are copied once for all tiles
//
// With few slots for each expert, read bandwidth limits the speed. Nearly every expert has slots, so
// the first weights are loaded before the slots of the expert are known.

#include "expert_rows.cuh"
using TileArguments = ExpertTileArguments;

#include "half_rows.cuh"

#include "gemm_tile.cuh"
#include "slab_product.cuh"
#include "weight_slabs.cuh"

#define SLAB_BYTES (BATCH * SLAB_ROW_BYTES)

DYNAMIC_SHARED(stages, STAGES * SLAB_BYTES);
SHARED uint slotRows[BATCH]; // rows of the slots among the converted ones
SHARED float inverses[BATCH];

DEVICE float inverseOf(uint i) { return inverses[i]; }

#include "gemm_store.cuh"

/// Starts the copies of a slab of the first `tiles` tiles of slots. Two neighbouring threads copy a
/// sector of memory.
DEVICE void copySlab(const TileArguments& args, uint slab, uint tiles, uint thread)
{
    uint8_t* to = stages + slab % STAGES * SLAB_BYTES;
    const uint8_t* from = args.x + uint64_t(slab) * args.x_rows * SLAB_ROW_BYTES;
    _Pragma("unroll 1") for (uint t = thread; t < tiles * 8 * CHUNKS; t += THREADS)
    {
        const uint row = t / (8 * CHUNKS) * 8 + t / 2 % 8, chunk = t / 16 % 8 * 2 + t % 2;
        copyAsync(to + chunkOffset(row, chunk), from + slotRows[row] * SLAB_ROW_BYTES + 16 * chunk,
            true);
    }
}

/// Starts the copies of the first slabs of a batch of slots.
DEVICE void startCopies(
    const TileArguments& args, const TileOrigin& origin, uint tiles, uint thread)
{
    static_assert(BATCH <= THREADS);
    float inverse = 0;
    if (thread < BATCH)
    {
        const uint slot = uint(args.product.order[min(origin.at + thread, origin.end - 1)]);
        const uint row = args.product.x_run != 0 ? slot : slot / args.product.top_k;
        slotRows[thread] = row;
        inverse = args.inverses[row];
    }
    __syncthreads();
    UNROLL for (uint s = 0; s < STAGES - 1; s++)
    {
        if (s < slabCount(args.product)) copySlab(args, s, tiles, thread);
        commitCopies();
    }
    if (thread < BATCH) inverses[thread] = inverse;
}

/// Waits for the copy of a slab, and starts one of a later slab.
DEVICE void awaitSlab(const TileArguments& args, uint slab, uint tiles, uint thread)
{
    waitForCopies<STAGES - 2>();
    __syncthreads();
    if (slab + STAGES - 1 < slabCount(args.product)) copySlab(args, slab + STAGES - 1, tiles, thread);
    commitCopies();
}

/// Multiplies a batch of slots with the block's weight rows, starting at `first`. `next` has the first DEEP
/// slabs of weights, and in the end those of the next batch, if there is one.
DEVICE void multiplySlots(
    const TileArguments& args, const TileOrigin& origin, StoredSlab (&next)[DEEP], uint first,
    uint thread)
{
    const uint slabs = slabCount(args.product), tiles = min((origin.end - origin.at + 7) / 8, X_TILES);
    const bool is_last_batch = origin.at + SPREAD * BATCH >= origin.end;
    startCopies(args, origin, tiles, thread);
    for (uint pass = 0; pass < PASSES; pass++)
    {
        const bool is_last_pass = pass == PASSES - 1;
        Sums sums;
        sums.clear();
        for (uint begin = 0; begin < slabs; begin += DEEP)
            UNROLL for (uint p = 0; p < DEEP; p++)
            {
                const uint slab = begin + p;
                if (slab >= slabs) break;
                if (pass == 0) awaitSlab(args, slab, tiles, thread);
                const WeightSlab current(next[p], slab, origin.lane);
                const bool is_last_slab = slab + DEEP >= slabs; // of those in next[p]
                TileOrigin ahead = origin;
                ahead.first += (is_last_slab ? is_last_pass ? 0 : pass + 1 : pass) * ROWS;
                if (!is_last_slab || !is_last_pass || !is_last_batch)
                    next[p].load(args.product, ahead, is_last_slab ? p : slab + DEEP);
                multiplySlab(current, stages + slab % STAGES * SLAB_BYTES, origin.lane, sums, tiles);
            }
        storeTile(args, sums, origin, first + pass * ROWS, thread);
    }
}

EARLY_KERNEL(gemm_experts, TileArguments)
{
    const uint thread = threadIdx.x, first = blockIdx.x * PASSES * ROWS;
    const Arguments& product = args.product;
    TileOrigin origin = warpOrigin(first, thread);
    origin.plane = blockIdx.z;
    loadFormatTables(product.w, thread, THREADS);
    StoredSlab next[DEEP];
    UNROLL for (uint p = 0; p < DEEP; p++)
        next[p].load(product, origin, min(p, slabCount(product) - 1));
    waitForInputs();
    origin.at = uint(product.starts[origin.plane]) + blockIdx.y * BATCH;
    origin.end = uint(product.starts[origin.plane + 1]);
    for (; origin.at < origin.end; origin.at += SPREAD * BATCH)
    {
        multiplySlots(args, origin, next, first, thread);
        __syncthreads();
    }
}
