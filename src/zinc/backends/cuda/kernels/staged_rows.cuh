// Many rows of x of a tensor core GEMM: rows that half_rows has converted are copied to shared
// memory, KSPLIT slabs at a time, while earlier ones are multiplied.

#define SLAB_BYTES (BATCH * SLAB_ROW_BYTES) // of the tile's rows
DYNAMIC_SHARED(stages, STAGES * KSPLIT * SLAB_BYTES);
SHARED float inverses[BATCH];
#if EXPERTS
SHARED uint rowNumbers[BATCH]; // of the slots among the converted rows
#endif

DEVICE float inverseOf(uint i) { return inverses[i]; }

/// Finds the tile's rows, which number among the converted ones.
DEVICE void findRows(const TileArguments& args, const TileOrigin& origin, uint thread)
{
    for (uint i = thread; i < BATCH; i += THREADS)
    {
        uint row = min(origin.at + i, origin.end - 1);
#if EXPERTS
        uint slot = uint(args.product.order[row]);
        row = args.product.x_run != 0 ? slot : slot / args.product.top_k;
        rowNumbers[i] = row;
#endif
        inverses[i] = args.inverses[row];
    }
    __syncthreads();
}

/// Starts the copies of KSPLIT slabs, those of a round, to a stage. Neighbouring threads copy chunks
/// of neighbouring rows, which avoids bank conflicts.
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
        {
#if EXPERTS
            const uint row = rowNumbers[t / (8 * CHUNKS) * 8 + t % 8];
            copyAsync(to + 16 * t, from + chunkOffset(row, t / 8 % CHUNKS), true);
#else
            copyAsync(to + 16 * t, from + origin.at * SLAB_ROW_BYTES + 16 * t, true);
#endif
        }
    }
}

/// Multiplies a slab of weights with a slab of x in shared memory.
DEVICE void multiplySlab(const WeightSlab& weights, const uint8_t* x, uint lane, Sums& sums)
{
    // Of four matrices, two are the chunks of a step in one group of rows, two in the next.
    const uint8_t* at = x + lane / 16 * GROUP_BYTES + lane / 8 % 2 * 128 + lane % 8 * 16;
    UNROLL for (uint step = 0; step < STEPS; step++)
    {
        uint a[WEIGHTS * ROW_TILES][4];
        UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++) weights.fragment(t, step, a[t]);
        UNROLL for (uint j = 0; j < X_TILES; j += 2)
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

DEVICE void accumulate(
    const TileArguments& args, const TileOrigin& origin, Sums& sums, uint thread)
{
    const uint slabs = origin.last_slab;
    const uint rounds = (slabs - origin.slab + KSPLIT - 1) / KSPLIT;
    StoredSlab next;
    next.load(args.product, origin, min(origin.slab + origin.part, slabs - 1));
    waitForRows();
    findRows(args, origin, thread);
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
        multiplySlab(current, x, origin.lane, sums);
    }
}
