// GEMM over weights. Each workgroup computes a tile of ROWS weight rows by BATCH rows of x. It
// stages weights and activations in shared memory; the next ones are prefetched into registers
// while the current ones are multiplied.
//   EXPERTS   rows of x are the slots of an expert (group.z), and SPREAD workgroups share an expert
//   MATRICES  multiply with cooperative matrices instead of sums for each thread

#if EXPERTS
#include "expert_rows.cuh"
#else
#include "linear_rows.cuh"
#endif
#if MATRICES
#include "gemm_matrices.cuh"
#else
#include "gemm_sums.cuh"
#endif

#if EXPERTS
DEVICE uint8_t* xAt(ARGS, uint i, uint plane) { return rowAt(args, i); }
#else
DEVICE uint8_t* xAt(ARGS, uint i, uint plane) { return rowAt(args, i, plane); }
#endif

/// The tile: weight rows of a plane, starting at `first`, and rows of x from `at` to `end`.
struct TileOrigin
{
    uint first, plane, at, end;

    MEMBER uint weightRow(ARGS, uint t) { return plane * args.rows + min(first + t / UNITS, args.rows - 1); }
    MEMBER uint8_t* xRow(ARGS, uint t) { return xAt(args, min(at + t / UNITS, end - 1), plane); }
};

#if MATRICES && ROWS_Q8
#define WEIGHTS_EACH ((ROWS * UNITS + THREADS - 1) / THREADS) // units that a thread loads
#define ACTIVATIONS_EACH ((BATCH * UNITS + THREADS - 1) / THREADS)

/// A thread's units for the next step of the loop, loaded while the current ones are multiplied. Past
/// the end of a row or of the matrix, the last unit or row is loaded again.
struct Prefetch
{
    uint rows[WEIGHTS_EACH];
    uint8_t* x_rows[ACTIVATIONS_EACH];
    Weights w[WEIGHTS_EACH];
    Activations x[ACTIVATIONS_EACH];

    MEMBER Prefetch(TileOrigin origin, uint thread)
    {
        uint units = (COLUMNS + UNIT - 1) / UNIT;
        UNROLL for (uint k = 0; k < WEIGHTS_EACH; k++)
            rows[k] = origin.weightRow(args, min(k * THREADS + thread, ROWS * UNITS - 1)) * units;
        UNROLL for (uint k = 0; k < ACTIVATIONS_EACH; k++)
            x_rows[k] = origin.xRow(args, min(k * THREADS + thread, BATCH * UNITS - 1));
    }

    MEMBER void load(ARGS, uint unit, uint thread)
    {
        uint last = (COLUMNS + UNIT - 1) / UNIT - 1, u = min(unit + thread % UNITS, last);
        UNROLL for (uint k = 0; k < WEIGHTS_EACH; k++)
            w[k] = loadWeights(args.w, rows[k] + u);
        UNROLL for (uint k = 0; k < ACTIVATIONS_EACH; k++)
            x[k] = loadActivations(x_rows[k], u, COLUMNS);
    }

    MEMBER void store(ARGS, uint unit, uint thread)
    {
        bool exists = unit + thread % UNITS < (COLUMNS + UNIT - 1) / UNIT;
        UNROLL for (uint k = 0; k < WEIGHTS_EACH; k++)
        {
            uint t = k * THREADS + thread;
            if (t >= ROWS * UNITS) continue;
            if (exists) storeWeights(t, w[k]);
            else storeZeroWeights(t);
        }
        UNROLL for (uint k = 0; k < ACTIVATIONS_EACH; k++)
        {
            uint t = k * THREADS + thread;
            if (t < BATCH * UNITS) storeActivations(t, x[k]);
        }
    }
};

DEVICE Sums accumulateTile(ARGS, TileOrigin origin, uint thread)
{
    Sums sums = zeroSums();
    Prefetch next = Prefetch(origin, thread);
    next.load(args, 0, thread);
    for (uint unit = 0; unit * UNIT < COLUMNS; unit += UNITS)
    {
        next.store(args, unit, thread);
        __syncthreads();
        next.load(args, unit + UNITS, thread);
        multiply(sums, thread);
        __syncthreads();
    }
    return sums;
}

#else

DEVICE Sums accumulateTile(ARGS, TileOrigin origin, uint thread)
{
    uint units = (COLUMNS + UNIT - 1) / UNIT;
    Sums sums = zeroSums();
    for (uint unit = 0; unit < units; unit += UNITS)
    {
        for (uint t = thread; t < ROWS * UNITS; t += THREADS)
        {
            uint u = unit + t % UNITS;
            if (u < units) storeWeights(t, loadWeights(args.w, origin.weightRow(args, t) * units + u));
            else storeZeroWeights(t);
        }
        for (uint t = thread; t < BATCH * UNITS; t += THREADS)
        {
            uint u = min(unit + t % UNITS, units - 1);
            storeActivations(t, loadActivations(origin.xRow(args, t), u, COLUMNS));
        }
        __syncthreads();
        multiply(sums, thread);
        __syncthreads();
    }
    return sums;
}

#endif

DEVICE void computeTile(ARGS, TileOrigin origin, uint thread)
{
    Sums sums = accumulateTile(args, origin, thread);
    UNROLL for (uint part = 0; part < PARTS; part++)
    {
        stageSums(sums, part, thread);
        UNROLL for (uint k = 0; k < FOURS; k++)
        {
            uint2 where = sumsPosition(part, k, thread); // weight row, row of x
            uint r = origin.first + where.x, i = origin.at + where.y;
            float4 four = loadSums(sums, k, thread);
            if (i >= origin.end || r >= args.rows) continue;
#if OUT_Q8
            storeResultsQ8(args, i, origin.plane, r, four, 0);
#else
            UNROLL for (uint j = 0; j < 4; j++)
                if (r + j < args.rows) storeResult(args, i, origin.plane, r + j, four[j], 0);
#endif
        }
    }
}

KERNEL(gemm, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    TileOrigin origin;
    origin.first = group.x * ROWS;
    origin.plane = group.z;
#if EXPERTS
    uint begin = uint(args.starts[group.z]) + group.y * BATCH;
    origin.end = uint(args.starts[group.z + 1]);
    if (begin >= origin.end) return;
    loadFormatTables(args.w, thread, THREADS);
    for (uint at = begin; at < origin.end; at += SPREAD * BATCH)
    {
        origin.at = at;
        computeTile(args, origin, thread);
        __syncthreads();
    }
#else
    origin.at = group.y * BATCH;
    origin.end = rowCount(args);
    if (origin.at >= origin.end) return;
    loadFormatTables(args.w, thread, THREADS);
    computeTile(args, origin, thread);
#endif
}
