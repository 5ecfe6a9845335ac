// Many rows of x of a GEMM by warp groups: a thread of the last group copies slabs of converted rows
// (half_rows.cuh) to shared memory, STAGES deep, and the other groups multiply them.

#define SLAB_BYTES (BATCH * SLAB_ROW_BYTES) // bytes of the tile's rows in a slab
#define COPIER_REGISTERS 40
#define WORKER_REGISTERS 232 // per thread of each multiplying group; the copying group releases the rest

DYNAMIC_SHARED(stages, STAGES * SLAB_BYTES);
SHARED float inverses[BATCH];
SHARED Barrier full[STAGES], empty[STAGES]; // phases: the slab is copied, all groups have read it

DEVICE float inverseOf(uint i) { return inverses[i]; }

/// Makes the barriers of the stages. All threads of the block call it.
DEVICE void makeStages(uint thread)
{
    if (thread == 0)
    {
        for (uint s = 0; s < STAGES; s++)
        {
            initBarrier(&full[s], 1);
            initBarrier(&empty[s], WORKERS / GROUP_THREADS);
        }
        publishBarriers();
    }
    __syncthreads();
}

/// Copies all slabs of the tile's rows to the stages, one after another. The threads of the last group
/// call it.
DEVICE void copySlabs(const TileArguments& args, const TileOrigin& origin, uint thread)
{
    releaseRegisters<COPIER_REGISTERS>();
    waitForInputs();
    if (thread != WORKERS) return;
    for (uint slab = 0; slab < origin.last_slab; slab++)
    {
        const uint stage = slab % STAGES, round = slab / STAGES;
        if (round > 0) waitForPhase(&empty[stage], round - 1);
        arriveExpecting(&full[stage], SLAB_BYTES);
        const uint64_t row = uint64_t(slab) * args.x_rows + origin.at;
        copyBulk(stages + stage * SLAB_BYTES, args.x + row * SLAB_ROW_BYTES, SLAB_BYTES, &full[stage]);
    }
}

/// Multiplies a slab of weights by a slab of x in shared memory. The operands of a step are converted
/// while the previous step is multiplied.
DEVICE void multiplySlab(const WeightSlab& weights, const uint8_t* x, Sums& sums)
{
    const MatrixPlace b = placeOfMatrix(x);
    uint a[2][WEIGHTS][4];
    UNROLL for (uint step = 0; step < STEPS; step++)
    {
        waitForProducts<1>();
        UNROLL for (uint t = 0; t < WEIGHTS; t++) weights.fragment(t, step, a[step % 2][t]);
        fenceProducts();
        UNROLL for (uint t = 0; t < WEIGHTS; t++)
            multiplyGroup(sums.d[t], a[step % 2][t], shifted(b, step * 256));
        commitProducts();
    }
    waitForProducts<0>();
}

DEVICE void accumulate(
    const TileArguments& args, const TileOrigin& origin, Sums& sums, uint thread)
{
    StoredSlab next;
    next.load(args.product, origin, 0);
    waitForInputs();
    for (uint i = thread; i < BATCH; i += WORKERS)
        inverses[i] = args.inverses[min(origin.at + i, origin.end - 1)];
    for (uint slab = 0; slab < origin.last_slab; slab++)
    {
        const uint stage = slab % STAGES;
        const WeightSlab current(next, slab, origin.lane);
        if (slab + 1 < origin.last_slab) next.load(args.product, origin, slab + 1);
        waitForPhase(&full[stage], slab / STAGES);
        multiplySlab(current, stages + stage * SLAB_BYTES, sums);
        if (thread % GROUP_THREADS == 0) arrive(&empty[stage]);
    }
}
