// half_rows: converts rows of 8-bit blocks to float16 operands of tensor cores (half_rows.cuh).
// A block converts eight rows (group.y) of WIDE slabs (group.x).
//   BY_ROW  the chunks of a row in a slab are contiguous, for kernels that gather rows

#include "arguments.h"

using Arguments = HalfRowsArguments;

#include "half_rows.cuh"
#include "step.cuh"

#define WIDE 4
#define THREADS (WIDE * 8 * STEPS)

SHARED float factors[8];

DEVICE uint8_t* rowAt(ARGS, uint i)
{
    return args.x + uint64_t(i / args.runs) * args.x_stride + i % args.runs * args.x_run;
}

/// Returns the byte offset of a chunk of a row in a slab of y.
DEVICE uint storedOffset(uint row, uint chunk)
{
    return BY_ROW ? row * SLAB_ROW_BYTES + 16 * chunk : chunkOffset(row, chunk);
}

/// A word of a unit and the unit's scale. Past the last column both are zeros.
struct ScaledWord
{
    uint bytes;
    float scale;

    MEMBER ScaledWord(uint8_t* row, uint cols, uint unit, uint word) : bytes(0), scale(0)
    {
        if (unit * 32 + word * 4 >= cols) return;
        bytes = ((uint*)row)[unit * 8 + word];
        scale = scalesOf(row, cols)[unit].x;
    }

    /// Returns the numbers times `factor` as two pairs of float16 numbers: bytes 0 and 2, 1 and 3.
    MEMBER uint2 pairs(float factor) const
    {
        const float size = scale * factor;
        float4 v;
        UNROLL for (uint i = 0; i < 4; i++) v[i] = size * float(int(bytes << (24 - 8 * i)) >> 24);
        return uint2(packHalves(v.x, v.z), packHalves(v.y, v.w));
    }
};

KERNEL(half_rows, Arguments)
{
    const uint thread = threadIdx.x, first = blockIdx.y * 8;
    const uint n = rowsOf(args.step, args.dim) * args.runs;
    if (first >= n) return;
    const uint row = thread % 8, step = thread / 8 % STEPS;
    const uint slab = blockIdx.x * WIDE + thread / (8 * STEPS);
    uint8_t* x = rowAt(args, min(first + row, n - 1));
    ScaledWord words[4] = { { x, args.cols, 4 * slab, step }, { x, args.cols, 4 * slab + 1, step },
        { x, args.cols, 4 * slab + 2, step }, { x, args.cols, 4 * slab + 3, step } };
    {
        uint i = min(first + thread / SUBGROUP, n - 1);
        RowFactor factor = factorOf(rowAt(args, i), args.cols, thread % SUBGROUP);
        if (thread % SUBGROUP == 0)
        {
            factors[thread / SUBGROUP] = factor.factor;
            if (blockIdx.x == 0) args.inverses[first + thread / SUBGROUP] = factor.inverse;
        }
    }
    __syncthreads();
    if (slab >= args.slabs) return;
    uint4 low, high;
    UNROLL for (uint c = 0; c < 4; c++)
    {
        uint2 pairs = words[c].pairs(factors[row]);
        low[c] = pairs.x;
        high[c] = pairs.y;
    }
    uint8_t* y = args.y + uint64_t(slab) * args.y_rows * SLAB_ROW_BYTES;
    storeAligned<16>((uint4*)(y + storedOffset(first + row, 2 * step)), low);
    storeAligned<16>((uint4*)(y + storedOffset(first + row, 2 * step + 1)), high);
}
