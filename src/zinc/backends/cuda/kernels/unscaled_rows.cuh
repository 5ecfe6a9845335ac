// Rows for products of an RMS norm, stored before the scale of the norm is known: 8-bit blocks of y w,
// where w are the weights of the norm, followed by the sum of squares of y in each block. A product of
// these rows is multiplied by rsqrt(mean(y^2) + eps).
//   COLS   columns of a row, a multiple of 32
//   WARPS  warps per block of a kernel that reads such rows
//   BATCH  rows of x of such a kernel

#pragma once

#include "half_rows.cuh"
#include "q8.cuh"

/// The sums of squares of a row of `cols` columns.
DEVICE float* squaresOf(uint8_t* row, uint cols)
{
    return (float*)(scalesOf(row, cols) + cols / 32);
}

/// Stores four columns, starting at `col`, of a block. The eight lanes that hold a block (the first is
/// a multiple of 8) call it together.
DEVICE void storeUnscaled(uint8_t* row, uint cols, uint col, float4 y, float4 weight)
{
    const float squares = neighbourSum<8>(dot(y, y));
    if (col % 32 == 0) squaresOf(row, cols)[col / 32] = squares;
    storeQ8(row, cols, col, y * weight);
}

/// A lane's part of the sums of squares of the rows that its warp scales: `warp` and every WARPS-th
/// after it.
struct RowSquares
{
    float sums[(BATCH + WARPS - 1) / WARPS][(COLS / 32 + SUBGROUP - 1) / SUBGROUP];

    MEMBER void load(uint8_t* x, uint stride, uint n_x, uint warp, uint lane)
    {
        UNROLL for (uint r = 0; r < (BATCH + WARPS - 1) / WARPS; r++)
        {
            float* squares = squaresOf(rowAt(x, min(warp + r * WARPS, n_x - 1), stride), COLS);
            UNROLL for (uint i = 0; i < (COLS / 32 + SUBGROUP - 1) / SUBGROUP; i++)
            {
                const uint block = lane + i * SUBGROUP;
                sums[r][i] = block < COLS / 32 ? loadAligned<4>(squares + block) : 0.0f;
            }
        }
    }

    /// Stores the scales of the warp's rows.
    MEMBER void store(float* scales, float eps, uint warp, uint lane) const
    {
        UNROLL for (uint r = 0; r < (BATCH + WARPS - 1) / WARPS; r++)
        {
            float sum = 0;
            UNROLL for (uint i = 0; i < (COLS / 32 + SUBGROUP - 1) / SUBGROUP; i++) sum += sums[r][i];
            sum = warpSum(sum);
            if (lane == 0 && warp + r * WARPS < BATCH)
                scales[warp + r * WARPS] = rsqrt(sum / float(COLS) + eps);
        }
    }
};
