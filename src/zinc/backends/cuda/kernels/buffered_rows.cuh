// A group of 256 columns (8 units) of rows of x in shared memory: the 8-bit numbers of the rows,
// then the scales and sums of their units.
//   BATCH   rows

#pragma once

#include "floats.cuh"
#include "mma.cuh"

#define ROWS_BYTES (320 * BATCH)

/// Starts asynchronous copies of one group of the `n_x` rows at `x` to `shared`.
DEVICE void copyRows(uint8_t* shared, uint8_t* x, uint stride, uint n_x, uint group, uint lane)
{
    UNROLL for (uint k = 0; k < BATCH / 2; k++)
    {
        const uint i = k * SUBGROUP + lane;
        uint8_t* row = rowAt(x, min(i / 16, n_x - 1), stride);
        copyAsync((uint4*)shared + i, (uint4*)row + group * 16 + i % 16, true);
    }
    UNROLL for (uint k = 0; k < (BATCH + 7) / 8; k++)
    {
        const uint i = k * SUBGROUP + lane;
        if (BATCH % 8 != 0 && i >= 4 * BATCH) break;
        const uint8_t* scales = rowAt(x, min(i / 4, n_x - 1), stride) + COLS;
        uint4* to = (uint4*)(shared + 256 * BATCH) + i;
        copyAsync(to, (const uint4*)scales + group * 4 + i % 4, true);
    }
}

/// Returns half k of the 32 numbers of a unit of a row.
DEVICE uint4 bufferedBytes(const uint8_t* shared, uint row, uint unit, uint k)
{
    return ((const uint4*)shared)[16 * row + 2 * unit + k];
}

/// Returns the scale and the sum of a unit of a row.
DEVICE float2 bufferedScales(const uint8_t* shared, uint row, uint unit)
{
    return ((const float2*)(shared + 256 * BATCH))[8 * row + unit];
}
