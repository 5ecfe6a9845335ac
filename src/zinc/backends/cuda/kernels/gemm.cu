// GEMM over weights. Each block computes a tile of ROWS weight rows by BATCH rows of x. It stages
// weights and activations in shared memory.
//   EXPERTS   rows of x are the slots of an expert (group.z), and SPREAD blocks share an expert

#if EXPERTS
#include "expert_rows.cuh"
#else
#include "linear_rows.cuh"
#endif
#include "gemm_sums.cuh"

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
