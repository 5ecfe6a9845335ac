// Activations of few rows as tensor core operands in registers, and their products with weights
// (group_weights.cuh). Both are processed in groups of 256 columns, or 8 units of 32 columns. Lane
// c of a quad holds units c and c + 4 of row lane / 4 of each tile of 8 rows of x.
//   X_TILES   tiles of 8 rows of x

#pragma once

#include "group_weights.cuh"
#include "floats.cuh"

#define CHAINS (X_TILES == 1 ? 2 : 1) // independent accumulators, so that MMAs overlap

#define BATCH (8 * X_TILES)
#include "buffered_rows.cuh" // needs BATCH
#define LANE_SUMS 4 // sums per lane, of 16 weight rows by 8 rows of x

/// The place of a sum in a tile: weight row t and row b of x.
struct SumPlace
{
    uint t, b;

    MEMBER explicit SumPlace(uint index)
    {
        const uint lane = index / LANE_SUMS % SUBGROUP, e = index % LANE_SUMS;
        t = lane / 4 + 8 * (e / 2);
        b = index / (LANE_SUMS * SUBGROUP) * 8 + 2 * (lane % 4) + e % 2;
    }

    /// Returns the index of the sum of weight row t and row b of x.
    MEMBER static uint indexOf(uint t, uint b)
    {
        const uint lane = t % 8 * 4 + b % 8 / 2;
        return LANE_SUMS * (b / 8 * SUBGROUP + lane) + t / 8 * 2 + b % 2;
    }
};

/// A lane's units of a group of x as stored in memory: 8-bit values, scales and sums.
struct StoredRows
{
    uint4 bytes[X_TILES][2][2];
    float2 scales[X_TILES][2];

    /// Loads a group of the rows at `rowOf(b)`.
    template <class RowOf> MEMBER void load(const RowOf& rowOf, uint group, uint lane)
    {
        UNROLL for (uint j = 0; j < X_TILES; j++)
        {
            uint8_t* row = rowOf(8 * j + lane / 4);
            UNROLL for (uint i = 0; i < 2; i++)
            {
                const uint at = group * GROUP_UNITS + 4 * i + lane % 4, unit = min(at, UNITS - 1);
                UNROLL for (uint k = 0; k < 2; k++)
                    bytes[j][i][k] = loadAligned<16>((uint4*)row + 2 * unit + k);
                scales[j][i] = at < UNITS ? scalesOf(row, COLS)[unit] : float2(0.0f);
            }
        }
    }

    /// Reads a lane's units of a group from shared memory (buffered_rows.cuh).
    MEMBER void read(const uint8_t* shared, uint lane)
    {
        UNROLL for (uint j = 0; j < X_TILES; j++)
            UNROLL for (uint i = 0; i < 2; i++)
            {
                const uint row = 8 * j + lane / 4, unit = 4 * i + lane % 4;
                UNROLL for (uint k = 0; k < 2; k++)
                    bytes[j][i][k] = bufferedBytes(shared, row, unit, k);
                scales[j][i] = bufferedScales(shared, row, unit);
            }
    }
};

/// A lane's units of a group of x as float16. Each group of a row is scaled by its own power of two
/// (half_rows.cuh explains the scale).
struct GroupRows
{
    uint numbers[X_TILES][2][STEPS][2]; // pairs of numbers of unit c and of unit c + 4
    float inverses[X_TILES][2];         // 1 / the factors of rows 2 c and 2 c + 1, whose sums the lane holds
#if WHOLE_SCALES && MINIMUMS
    uint sums[X_TILES][2]; // sums of both units times SUM_FACTOR as float16, and residuals
#endif

    MEMBER void convert(const StoredRows& x, uint lane)
    {
        UNROLL for (uint j = 0; j < X_TILES; j++)
        {
            const float2 (&scales)[2] = x.scales[j];
            float top = max(scales[0].x, scales[1].x);
            top = max(top, shuffleXor(top, 1));
            top = max(top, shuffleXor(top, 2));
            const RowFactor row = factorOfScale(top);
            UNROLL for (uint i = 0; i < 2; i++)
            {
                const uint d = twice(scales[i].x * row.factor);
                UNROLL for (uint w = 0; w < STEPS; w++)
                {
                    uint (&pair)[2] = numbers[j][i][w];
                    halvesOfSigned(x.bytes[j][i][w / 4][w % 4], pair[0], pair[1]);
                    UNROLL for (uint k = 0; k < 2; k++) pair[k] = multiplyHalves(pair[k], d);
                }
                inverses[j][i] = __shfl_sync(0xffffffffu, row.inverse, int(8 * (lane % 4) + 4 * i));
            }
#if WHOLE_SCALES && MINIMUMS
            const float s = row.factor * SUM_FACTOR;
            const float first = scales[0].y * s, second = scales[1].y * s;
            sums[j][0] = packHalves(first, second);
            sums[j][1] = packHalves(first - f16tof32(sums[j][0] & 0xffffu),
                second - f16tof32(sums[j][0] >> 16));
#endif
        }
    }
};

using LaneSums = float4;

/// Returns element e of a product: the total of all accumulators.
DEVICE float totalOf(const float (&sums)[CHAINS][4], uint e)
{
    float total = sums[0][e];
    UNROLL for (uint c = 1; c < CHAINS; c++) total += sums[c][e];
    return total;
}

/// The products of a group of weights with the rows of x.
struct GroupProducts
{
    GroupWeights weights;
    float d[X_TILES][CHAINS][4];

    MEMBER GroupProducts(const StoredGroup& w, uint c) : weights(w, c), d {} {}

    /// Multiplies the units c + 4 i and adds the products to `d`.
    MEMBER void add(const StoredGroup& w, const GroupRows& x, uint i)
    {
        weights.prepare(w, i);
        UNROLL for (uint word = 0; word < STEPS; word++)
        {
            uint a[4];
            weights.fragment(w, i, word, a);
            UNROLL for (uint j = 0; j < X_TILES; j++)
            {
                const uint (&b)[2] = x.numbers[j][i][word];
                multiplyTiles(d[j][word % CHAINS], a, b[0], b[1]);
            }
        }
    }

    /// Returns the products with x tile j, in the accumulator layout of `multiplyTiles`.
    MEMBER float4 of(const GroupRows& x, uint j, uint lane) const
    {
        float m[4] = {};
#if WHOLE_SCALES && MINIMUMS
        uint a[4];
        weights.minimums(a);
        multiplyTiles(m, a, x.sums[j][0], x.sums[j][1]);
#endif
        float4 r;
        UNROLL for (uint e = 0; e < 4; e++)
        {
            float sum = totalOf(d[j], e) * weights.factor(e / 2);
#if WHOLE_SCALES && MINIMUMS
            sum -= m[e] * weights.minimumFactor(e / 2);
#endif
            r[e] = sum * x.inverses[j][e % 2];
        }
        return r;
    }
};
