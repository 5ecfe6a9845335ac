// Groups of 256 columns of weights and of few rows of x, as operands of tensor cores in registers.
//
// A group has two slabs of 128 columns (half_rows.cuh, half_weights.cuh): lane c of a quad has units
// c and c + 4 of the weight rows lane / 4 and lane / 4 + 8, and of row lane / 4 of each 8 rows of x.
//   COLS      columns of a row
//   X_TILES   tiles of 8 rows of x

#pragma once

#include "half_rows.cuh"
#include "half_weights.cuh"

#define GROUP_UNITS 8
#define WHOLE_SCALES (FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K) // see whole_scales.cuh
#define SUM_FACTOR 0.015625f          // keeps sums of x below the largest float16 number
#define UNITS ((COLS + 31) / 32) // of a row
#define CHAINS (X_TILES == 1 ? 2 : 1) // sums of a product, whose additions do not wait for each other

/// A lane's units of a group of x, multiplied by a power of two as half_rows.cuh describes, but for
/// each group by its own.
struct GroupRows
{
    uint numbers[X_TILES][2][STEPS][2]; // of unit c and of unit c + 4
    float inverses[X_TILES][2];         // of rows 2 c and 2 c + 1, which a lane has sums of
#if WHOLE_SCALES && MINIMUMS
    uint sums[X_TILES][2]; // of both units, times SUM_FACTOR: a pair, and what it lacks to float32
#endif

    MEMBER void load(uint8_t* const (&rows)[X_TILES], uint group, uint lane)
    {
        uint at[2];
        UNROLL for (uint i = 0; i < 2; i++) at[i] = group * GROUP_UNITS + 4 * i + lane % 4;
        uint4 bytes[X_TILES][2][2];
        float2 scales[X_TILES][2];
        UNROLL for (uint j = 0; j < X_TILES; j++)
            UNROLL for (uint i = 0; i < 2; i++)
            {
                const uint unit = min(at[i], UNITS - 1);
                bytes[j][i][0] = loadAligned<16>((uint4*)rows[j] + 2 * unit);
                bytes[j][i][1] = loadAligned<16>((uint4*)rows[j] + 2 * unit + 1);
                scales[j][i] = at[i] < UNITS ? scalesOf(rows[j], COLS)[unit] : float2(0.0f);
            }
        UNROLL for (uint j = 0; j < X_TILES; j++)
        {
            float top = max(scales[j][0].x, scales[j][1].x);
            top = max(top, shuffleXor<4>(top, 1));
            top = max(top, shuffleXor<4>(top, 2));
            const RowFactor row = factorOfScale(top);
            UNROLL for (uint i = 0; i < 2; i++)
            {
                const uint d = twice(scales[j][i].x * row.factor);
                UNROLL for (uint w = 0; w < STEPS; w++)
                {
                    uint (&pair)[2] = numbers[j][i][w];
                    halvesOfSigned(bytes[j][i][w / 4][w % 4], pair[0], pair[1]);
                    UNROLL for (uint k = 0; k < 2; k++) pair[k] = multiplyHalves(pair[k], d);
                }
                inverses[j][i] = __shfl_sync(0xffffffffu, row.inverse, int(8 * (lane % 4) + 4 * i));
            }
#if WHOLE_SCALES && MINIMUMS
            const float s = row.factor * SUM_FACTOR;
            const float first = scales[j][0].y * s, second = scales[j][1].y * s;
            sums[j][0] = packHalves(first, second);
            sums[j][1] = packHalves(first - f16tof32(sums[j][0] & 0xffffu),
                second - f16tof32(sums[j][0] >> 16));
#endif
        }
    }
};

/// Where a lane's weights of a group are: in two rows of a matrix.
struct GroupPlace
{
    Matrix w;
    uint rows[2], group;

    /// The number of the group in row h.
    MEMBER uint block(uint h) const { return rows[h] * (UNITS / GROUP_UNITS) + group; }
};

/// Returns sum e of a product.
DEVICE float totalOf(const float (&sums)[CHAINS][4], uint e)
{
    float total = sums[0][e];
    UNROLL for (uint c = 1; c < CHAINS; c++) total += sums[c][e];
    return total;
}

#if WHOLE_SCALES
#include "whole_scales.cuh"
#else

/// A lane's units of a group of weights, as they are stored: units c and c + 4 of two rows.
struct StoredGroup
{
    StoredUnit units[2][2];

    /// Loads the units c + 4 i.
    MEMBER void load(const GroupPlace& place, uint c, uint i)
    {
        const uint unit = min(place.group * GROUP_UNITS + 4 * i + c, UNITS - 1);
        UNROLL for (uint h = 0; h < 2; h++)
            units[h][i] = loadStored(place.w, place.rows[h] * UNITS + unit);
    }
};

/// The products of a group with the rows of x.
struct GroupProducts
{
    uint c;
    float d[X_TILES][CHAINS][4];

    MEMBER GroupProducts(const StoredGroup& w, uint c) : c(c), d {} {}

    /// Adds the products of the units c + 4 i.
    MEMBER void add(const StoredGroup& w, const GroupRows& x, uint i)
    {
        // Rows and groups are whole blocks of a format.
        const uint unit = 4 * i + c;
        const HalfUnit low(w.units[0][i], unit), high(w.units[1][i], unit);
        UNROLL for (uint word = 0; word < STEPS; word++)
        {
            uint a[4];
            low.pairs(word, a[0], a[2]);
            high.pairs(word, a[1], a[3]);
            UNROLL for (uint j = 0; j < X_TILES; j++)
                multiplyTiles(d[j][word % CHAINS], a, x.numbers[j][i][word][0], x.numbers[j][i][word][1]);
        }
    }

    /// Returns the products with 8 rows of x, as `multiplyTiles` has sums.
    MEMBER float4 of(const GroupRows& x, uint j) const
    {
        float4 r;
        UNROLL for (uint e = 0; e < 4; e++)
            r[e] = totalOf(d[j], e) * (x.inverses[j][e % 2] / WEIGHT_FACTOR);
        return r;
    }
};

#endif
