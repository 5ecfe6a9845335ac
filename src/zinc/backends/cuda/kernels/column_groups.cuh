// Groups of 256 columns of few rows of x as operands of tensor cores in registers, and their products
// with groups of weights (group_weights.cuh). Lane c of a quad has units c and c + 4 of row lane / 4 of
// each 8 rows of x.
//   X_TILES   tiles of 8 rows of x

#pragma once

#include "group_weights.cuh"

#define SUM_FACTOR 0.015625f          // keeps sums of x below the largest float16 number
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

/// Returns sum e of a product.
DEVICE float totalOf(const float (&sums)[CHAINS][4], uint e)
{
    float total = sums[0][e];
    UNROLL for (uint c = 1; c < CHAINS; c++) total += sums[c][e];
    return total;
}

/// The products of a group with the rows of x.
struct GroupProducts
{
    GroupWeights weights;
    float d[X_TILES][CHAINS][4];

    MEMBER GroupProducts(const StoredGroup& w, uint c) : weights(w, c), d {} {}

    /// Adds the products of the units c + 4 i.
    MEMBER void add(const StoredGroup& w, const GroupRows& x, uint i)
    {
        weights.prepare(w, i);
        UNROLL for (uint word = 0; word < STEPS; word++)
        {
            uint a[4];
            weights.fragment(w, i, word, a);
            UNROLL for (uint j = 0; j < X_TILES; j++)
                multiplyTiles(d[j][word % CHAINS], a, x.numbers[j][i][word][0], x.numbers[j][i][word][1]);
        }
    }

    /// Returns the products with 8 rows of x, as `multiplyTiles` has sums.
    MEMBER float4 of(const GroupRows& x, uint j) const
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
            sum -= m[e] * (weights.minimumFactor(e / 2) / SUM_FACTOR);
#endif
            r[e] = sum * x.inverses[j][e % 2];
        }
        return r;
    }
};
