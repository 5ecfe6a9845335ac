// Rows of 8-bit blocks as float16 operands of tensor cores.
//
// A row is multiplied by a power of two, so that its largest magnitude becomes 2^13 to 2^14 and float16
// neither overflows nor loses small numbers. The epilogue multiplies by `inverse`, 1 / the factor.
//
// Columns are permuted within slabs of 128. In step s (0 to 7) of a slab, lane c of a quad holds
// columns 32 c + 4 s + {0, 1, 2, 3}, which are one word of its unit of weights. Each step has two
// chunks of eight numbers; position 2 c + i of chunk 2 s + h is column 32 c + 4 s + 2 i + h,
// so that masks and shifts of the words select the numbers of a pair.
//
// In memory a chunk of eight rows is one matrix of `loadMatrices`, 128 bytes, and the rows that a
// GEMM's tile needs of a slab are contiguous:
//
//     [slab][group of 8 rows][16 chunks][8 rows][8 numbers]
//
// For experts, whose tiles gather rows, memory has [slab][row][16 chunks][8 numbers] instead.

#pragma once

#include "half_pairs.cuh"

#define SLAB 128         // columns
#define SLAB_ROW_BYTES 256 // bytes of a row in a slab
#define CHUNKS 16        // chunks per slab
#define STEPS 8          // steps per slab, of two chunks each
#define GROUP_BYTES (8 * SLAB_ROW_BYTES)

/// Returns the byte offset of a chunk of a row in a slab.
DEVICE uint chunkOffset(uint row, uint chunk)
{
    return row / 8 * GROUP_BYTES + chunk * 128 + row % 8 * 16;
}

/// Stores four columns of a row, from `col` on, in slabs of `n_rows` rows.
DEVICE void storeHalves(uint8_t* slabs, uint n_rows, uint row, uint col, float4 v)
{
    const uint unit = col / 32, step = col / 4 % STEPS;
    uint8_t* slab = slabs + uint64_t(unit / 4) * n_rows * SLAB_ROW_BYTES;
    ((uint*)(slab + chunkOffset(row, 2 * step)))[unit % 4] = packHalves(v.x, v.z);
    ((uint*)(slab + chunkOffset(row, 2 * step + 1)))[unit % 4] = packHalves(v.y, v.w);
}

/// The power of two that a row is multiplied by, and its inverse.
struct RowFactor
{
    float factor, inverse;
};

/// Returns the scales of a row of 8-bit blocks with `cols` columns.
DEVICE float2* scalesOf(uint8_t* row, uint cols) { return (float2*)(row + (cols + 15) / 16 * 16); }

/// Returns the factor of numbers in 8-bit blocks whose largest scale is `top`.
DEVICE RowFactor factorOfScale(float top)
{
    const uint exponent = min(max(asuint(127.0f * top) >> 23, 14u), 254u);
    return { asfloat((267 - exponent) << 23), asfloat((exponent - 13) << 23) };
}

/// Returns the factor of a row of 8-bit blocks. All lanes of a warp call it.
DEVICE RowFactor factorOf(uint8_t* row, uint cols, uint lane)
{
    float top = 0;
    _Pragma("unroll 8") for (uint block = lane; block < (cols + 31) / 32; block += SUBGROUP)
        top = max(top, scalesOf(row, cols)[block].x);
    return factorOfScale(warpMax(top));
}
