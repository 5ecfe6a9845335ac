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

/// Loads a word of a unit, multiplied by its scale and `factor`, as two pairs of float16 numbers:
/// bytes 0 and 2, 1 and 3. Past the last column they are zeros.
DEVICE uint2 loadPairs(uint8_t* row, uint cols, uint unit, uint word, float factor)
{
    if (unit * 32 + word * 4 >= cols) return uint2(0u);
    uint bytes = ((uint*)row)[unit * 8 + word];
    float scale = scalesOf(row, cols)[unit].x * factor;
    float4 v;
    UNROLL for (uint i = 0; i < 4; i++) v[i] = scale * float(int(bytes << (24 - 8 * i)) >> 24);
    return uint2(packHalves(v.x, v.z), packHalves(v.y, v.w));
}

KERNEL(half_rows, Arguments)
{
    const uint thread = threadIdx.x, first = blockIdx.y * 8;
    const uint n = rowsOf(args.step, args.dim) * args.runs;
    if (first >= n) return;
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

    uint row = thread % 8, step = thread / 8 % STEPS;
    uint slab = blockIdx.x * WIDE + thread / (8 * STEPS);
    if (slab * SLAB >= args.cols) return;
    uint8_t* x = rowAt(args, min(first + row, n - 1));
    uint4 low, high;
    UNROLL for (uint c = 0; c < 4; c++)
    {
        uint2 pairs = loadPairs(x, args.cols, 4 * slab + c, step, factors[row]);
        low[c] = pairs.x;
        high[c] = pairs.y;
    }
    uint8_t* y = args.y + uint64_t(slab) * args.y_rows * SLAB_ROW_BYTES;
    storeAligned<16>((uint4*)(y + storedOffset(first + row, 2 * step)), low);
    storeAligned<16>((uint4*)(y + storedOffset(first + row, 2 * step + 1)), high);
}
