// Many rows of x of a tensor core GEMM: rows that half_rows has converted are copied to shared
// memory, KSPLIT slabs at a time, while earlier ones are multiplied.

#include "slab_product.cuh"

#define SLAB_BYTES (BATCH * SLAB_ROW_BYTES) // bytes of the tile's rows in a slab
DYNAMIC_SHARED(stages, STAGES * KSPLIT * SLAB_BYTES);
SHARED float inverses[BATCH];

DEVICE float inverseOf(uint i) { return inverses[i]; }

/// Loads 1 / the factors of the tile's rows (half_rows.cuh).
DEVICE void loadInverses(const TileArguments& args, const TileOrigin& origin, uint thread)
{
    for (uint i = thread; i < BATCH; i += THREADS)
        inverses[i] = args.inverses[min(origin.at + i, origin.end - 1)];
}

/// Starts the copies of the KSPLIT slabs of a round to a stage.
DEVICE void copySlabs(
    const TileArguments& args, const TileOrigin& origin, uint stage, uint round, uint thread)
{
    UNROLL for (uint k = 0; k < KSPLIT; k++)
    {
        const uint slab = origin.slab + round * KSPLIT + k;
        if (slab >= origin.last_slab) break;
        uint8_t* to = stages + (stage * KSPLIT + k) * SLAB_BYTES;
        const uint8_t* from = args.x + uint64_t(slab) * args.x_rows * SLAB_ROW_BYTES;
        UNROLL for (uint t = thread; t < BATCH * CHUNKS; t += THREADS)
            copyAsync(to + 16 * t, from + origin.at * SLAB_ROW_BYTES + 16 * t, true);
    }
}

DEVICE void accumulate(
    const TileArguments& args, const TileOrigin& origin, Sums& sums, uint thread)
{
    const uint slabs = origin.last_slab;
    const uint rounds = (slabs - origin.slab + KSPLIT - 1) / KSPLIT;
    StoredSlab next;
    next.load(args.product, origin, min(origin.slab + origin.part, slabs - 1));
    waitForInputs();
    loadInverses(args, origin, thread);
    UNROLL for (uint s = 0; s < STAGES - 1; s++)
    {
        if (s < rounds) copySlabs(args, origin, s, s, thread);
        commitCopies();
    }
    for (uint round = 0; round < rounds; round++)
    {
        const uint slab = origin.slab + round * KSPLIT + origin.part, ahead = round + STAGES - 1;
        waitForCopies<STAGES - 2>();
        __syncthreads();
        if (ahead < rounds) copySlabs(args, origin, ahead % STAGES, ahead, thread);
        commitCopies();
        const WeightSlab current(next, slab, origin.lane);
        if (slab + KSPLIT < slabs) next.load(args.product, origin, slab + KSPLIT);
        if (slab >= slabs) continue;
        const uint8_t* x = stages + (round % STAGES * KSPLIT + origin.part) * SLAB_BYTES;
        multiplyFirst<X_TILES>(current, x, origin.lane, sums);
    }
}
