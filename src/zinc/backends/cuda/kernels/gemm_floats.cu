// GEMM over float weights and float32 rows on tensor cores (tf32.cuh). A block computes a tile of ROWS
// weight rows by BATCH rows of x. Slabs of 32 columns of both are copied to shared memory, STAGES deep.
// Each slab has its own accumulators, so that tensor cores round short sums only.
//   SPLITS  blocks (group.z) that split the columns of a tile; the last to finish adds up their sums
//
// Rows of x are aligned to 16 bytes, and rows of both are whole units. In step s of a slab, lane c of a
// quad multiplies columns 8 s + 2 c and 8 s + 2 c + 1, which it loads from shared memory together.

#define EXPERTS 0
#define GROUPS 0
#define KSPLIT 1

#include "linear_rows.cuh"
using TileArguments = LinearTileArguments;

#include "tf32.cuh"

#define SLAB 32 // columns
#define STEPS (SLAB / 8)

#include "gemm_tile.cuh"

// Bytes from row to row in shared memory, such that eight rows lie in different banks.
#define W_PITCH ((SLAB + 8) * 16 / UNIT)
#define X_PITCH ((SLAB + 8) * 4)
#define STAGE_BYTES (ROWS * W_PITCH + BATCH * X_PITCH) // weights, then x

DYNAMIC_SHARED(stages, STAGES * STAGE_BYTES);

/// Starts the copies of a slab of weights. Columns past the last become zeros.
DEVICE void copyWeights(ARGS, uint slab, uint thread)
{
    const uint chunks = SLAB / UNIT, n = (COLUMNS + UNIT - 1) / UNIT;
    uint8_t* to = stages + slab % STAGES * STAGE_BYTES;
    UNROLL for (uint t = thread; t < ROWS * chunks; t += THREADS)
    {
        const uint row = min(blockIdx.x * ROWS + t / chunks, args.rows - 1);
        const uint unit = slab * chunks + t % chunks;
        copyAsync(to + t / chunks * W_PITCH + t % chunks * 16,
            (uint4*)args.w.q + row * n + min(unit, n - 1), unit < n);
    }
}

/// Starts the copies of a slab of x. Columns past the last become zeros.
DEVICE void copyRows(ARGS, const TileOrigin& origin, uint slab, uint thread)
{
    const uint chunks = SLAB / 4;
    uint8_t* to = stages + slab % STAGES * STAGE_BYTES + ROWS * W_PITCH;
    UNROLL for (uint t = thread; t < BATCH * chunks; t += THREADS)
    {
        const uint col = slab * SLAB + t % chunks * 4;
        const uint8_t* row = rowAt(args, min(origin.at + t / chunks, origin.end - 1), 0);
        copyAsync(to + t / chunks * X_PITCH + t % chunks * 16, row + 4 * min(col, COLUMNS - 4),
            col < COLUMNS);
    }
}

/// Loads two neighbouring weights.
DEVICE float2 loadWeightPair(const uint8_t* at)
{
#if FORMAT == F32
    return *(float2*)at;
#elif FORMAT == F16
    const uint pair = *(uint*)at;
    return float2(f16tof32(pair & 0xffffu), f16tof32(pair >> 16));
#else
    const uint pair = *(uint*)at;
    return float2(asfloat(pair << 16), asfloat(pair & 0xffff0000u));
#endif
}

/// The operands of a step.
struct StepOperands
{
    SplitSingles<4> w[ROW_TILES];
    SplitSingles<2> x[X_TILES];

    MEMBER StepOperands(const uint8_t* stage, uint step, uint warp, uint lane)
    {
        const uint q = lane / 4, col = 8 * step + 2 * (lane % 4);
        UNROLL for (uint i = 0; i < 2 * ROW_TILES; i++)
        {
            const uint row = warp * WARP_ROWS + 8 * i + q;
            const float2 pair = loadWeightPair(stage + row * W_PITCH + col * 16 / UNIT);
            w[i / 2].set(i % 2, pair.x);
            w[i / 2].set(i % 2 + 2, pair.y);
        }
        UNROLL for (uint j = 0; j < X_TILES; j++)
        {
            const uint8_t* row = stage + ROWS * W_PITCH + (8 * j + q) * X_PITCH;
            const float2 pair = *(float2*)(row + 4 * col);
            x[j].set(0, pair.x);
            x[j].set(1, pair.y);
        }
    }

    MEMBER void multiply(Sums& sums) const
    {
        UNROLL for (uint t = 0; t < ROW_TILES; t++)
        {
            // 16-bit weights are TF32 numbers.
            if (FORMAT == F32)
            {
                UNROLL for (uint j = 0; j < X_TILES; j++)
                    multiplySingles(sums.d[t][j], w[t].low, x[j].high);
            }
            UNROLL for (uint j = 0; j < X_TILES; j++)
                multiplySingles(sums.d[t][j], w[t].high, x[j].low);
            UNROLL for (uint j = 0; j < X_TILES; j++)
                multiplySingles(sums.d[t][j], w[t].high, x[j].high);
        }
    }
};

DEVICE void multiplySlab(uint slab, uint warp, uint lane, Sums& sums)
{
    Sums added;
    added.clear();
    UNROLL for (uint step = 0; step < STEPS; step++)
        StepOperands(stages + slab % STAGES * STAGE_BYTES, step, warp, lane).multiply(added);
    sums.add(added);
}

#define WEIGHT_FACTOR 1.0f
DEVICE float inverseOf(uint i) { return 1.0f; }

#include "gemm_store.cuh"

EARLY_KERNEL(gemm_floats, TileArguments)
{
    const uint thread = threadIdx.x;
    const Arguments& product = args.product;
    const TileOrigin origin = linearOrigin(product, thread);
    if (origin.at >= origin.end)
    {
        waitForInputs();
        return;
    }
    const uint first = origin.slab, end = origin.last_slab;
    UNROLL for (uint s = 0; s < STAGES - 1; s++)
        if (first + s < end) copyWeights(product, first + s, thread);
    waitForInputs();
    UNROLL for (uint s = 0; s < STAGES - 1; s++)
    {
        if (first + s < end) copyRows(product, origin, first + s, thread);
        commitCopies();
    }
    Sums sums;
    sums.clear();
    for (uint slab = first; slab < end; slab++)
    {
        const uint ahead = slab + STAGES - 1;
        waitForCopies<STAGES - 2>();
        __syncthreads();
        if (ahead < end)
        {
            copyWeights(product, ahead, thread);
            copyRows(product, origin, ahead, thread);
        }
        commitCopies();
        multiplySlab(slab, thread / SUBGROUP, origin.lane, sums);
    }
    storeTile(args, sums, origin, blockIdx.x * ROWS, thread);
}
