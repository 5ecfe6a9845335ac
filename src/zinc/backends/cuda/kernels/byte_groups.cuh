// Up to four rows of activations as 8-bit tensor core operands in registers, and their products
// with weights in Q4_K, Q5_K or Q6_K (group_weights.cuh). Both are processed in groups of 256
// columns, or 8 units of 32 columns. Lane c of a quad holds units c and c + 4 of two weight rows.
//
// A unit has its own scale, so one sum must not contain products of several units. But the lanes of a
// quad, whose products `multiplyBytes` adds up, hold different units. Therefore lane c fills only
// columns 2 c and 2 c + 1 of B, with its unit of two rows of x; the other lanes hold zeros there. Lane
// c gets the products of its own unit in these columns and applies the scales. The sums of a quad are
// added last.

#pragma once

#include "floats.cuh"
#include "group_weights.cuh"

#define BATCH 4
#include "buffered_rows.cuh" // needs BATCH
#define PAIRS (BATCH / 2)                    // pairs of rows of x; B contains one pair at a time
#define LANE_SUMS 2                          // sums per lane, of 16 weight rows by BATCH rows of x
#define UNIT_SCALES (FORMAT == Q6_K ? 2 : 1) // scales per unit of weights

/// The place of a sum in a tile: weight row t and row b of x.
struct SumPlace
{
    uint t, b;

    MEMBER explicit SumPlace(uint index)
        : t(index / (LANE_SUMS * BATCH) + 8 * (index % LANE_SUMS)), b(index / LANE_SUMS % BATCH) {}

    /// Returns the index of the sum of weight row t and row b of x.
    MEMBER static uint indexOf(uint t, uint b) { return LANE_SUMS * (t % 8 * BATCH + b) + t / 8; }
};

/// A lane's columns of B, and the scales of its units in all rows of x.
struct StoredRows
{
    uint4 bytes[PAIRS][2][2]; // units c and c + 4, or zeros
    float scales[BATCH][2];
#if MINIMUMS
    float2 own[2]; // scales and sums of row lane / 8
#endif

    /// Loads a group of the rows at `rowOf(b)`.
    template <class RowOf> MEMBER void load(const RowOf& rowOf, uint group, uint lane)
    {
        const uint column = lane / 4, c = lane % 4;
        UNROLL for (uint i = 0; i < 2; i++)
        {
            const uint at = group * GROUP_UNITS + 4 * i + c, unit = min(at, UNITS - 1);
            UNROLL for (uint p = 0; p < PAIRS; p++)
            {
                const uint4* row = (uint4*)rowOf(2 * p + column % 2) + 2 * unit;
                UNROLL for (uint k = 0; k < 2; k++)
                    bytes[p][i][k] = column / 2 == c ? loadAligned<16>(row + k) : uint4(0u);
            }
            UNROLL for (uint b = 0; b < BATCH; b++)
            {
                const float2* blocks = scalesOf(rowOf(b), COLS);
                scales[b][i] = at < UNITS ? loadAligned<4>(&blocks[unit].x) : 0.0f;
            }
#if MINIMUMS
            const float2* blocks = scalesOf(rowOf(lane / 8), COLS);
            own[i] = at < UNITS ? loadAligned<8>(blocks + unit) : float2(0.0f);
#endif
        }
    }

    /// Reads a group from shared memory (buffered_rows.cuh).
    MEMBER void read(const uint8_t* shared, uint lane)
    {
        const uint column = lane / 4, c = lane % 4;
        UNROLL for (uint i = 0; i < 2; i++)
        {
            const uint unit = 4 * i + c;
            UNROLL for (uint p = 0; p < PAIRS; p++)
                UNROLL for (uint k = 0; k < 2; k++)
                    bytes[p][i][k] = column / 2 == c
                        ? bufferedBytes(shared, 2 * p + column % 2, unit, k) : uint4(0u);
            UNROLL for (uint b = 0; b < BATCH; b++)
                scales[b][i] = bufferedScales(shared, b, unit).x;
#if MINIMUMS
            own[i] = bufferedScales(shared, lane / 8, unit);
#endif
        }
    }
};

/// The operands of a group of x.
struct GroupRows
{
    StoredRows rows;
#if MINIMUMS
    // Sums of both units of row lane / 8 (column_groups.cuh), zeros in odd columns, so that a lane
    // gets the products of the minimums with row lane % 4.
    uint sums[2];
    float inverse; // 1 / the factor of row lane % 4
#endif

    MEMBER void convert(const StoredRows& x, uint lane)
    {
        rows = x;
#if MINIMUMS
        float top = max(x.own[0].x, x.own[1].x);
        top = max(top, shuffleXor(top, 1));
        top = max(top, shuffleXor(top, 2));
        const RowFactor row = factorOfScale(top);
        const float s = lane / 4 % 2 ? 0.0f : row.factor * SUM_FACTOR;
        const float first = x.own[0].y * s, second = x.own[1].y * s;
        sums[0] = packHalves(first, second);
        sums[1] = packHalves(
            first - f16tof32(sums[0] & 0xffffu), second - f16tof32(sums[0] >> 16));
        inverse = __shfl_sync(0xffffffffu, row.inverse, int(8 * (lane % 4)));
#endif
    }

    MEMBER uint word(uint pair, uint i, uint w) const { return rows.bytes[pair][i][w / 4][w % 4]; }
};

using LaneSums = float2;

/// Adds the `n` values of two lanes whose numbers differ in `bit`. Each lane gets half of the sums, in
/// its first n / 2 values: the sums of odd index if `bit` is set in its number, otherwise of even
/// index.
template <uint n> DEVICE void addHalves(float* values, uint lane, uint bit)
{
    UNROLL for (uint k = 0; k < n / 2; k++)
    {
        const float even = values[2 * k], odd = values[2 * k + 1];
        values[k] = (lane & bit ? odd : even) + shuffleXor(lane & bit ? even : odd, bit);
    }
}

/// The products of a group of weights with the rows of x.
struct GroupProducts
{
    GroupWeights weights;
    float d[2 * BATCH]; // products of the lane's units: weight row h and row b of x at h * BATCH + b

    MEMBER GroupProducts(const StoredGroup& w, uint c) : weights(w, c), d {} {}

    /// Multiplies the units c + 4 i and adds the products to `d`.
    MEMBER void add(const StoredGroup& w, const GroupRows& x, uint i)
    {
        int products[PAIRS][UNIT_SCALES][4] = {};
        UNROLL for (uint step = 0; step < 4; step++)
        {
            const uint word = 2 * step, s = step * UNIT_SCALES / 4;
            uint a[4];
            UNROLL for (uint e = 0; e < 4; e++) a[e] = w.bytes(e % 2, i, word + e / 2);
            UNROLL for (uint p = 0; p < PAIRS; p++)
                multiplyBytes(products[p][s], a, x.word(p, i, word), x.word(p, i, word + 1));
        }
        UNROLL for (uint p = 0; p < PAIRS; p++)
            UNROLL for (uint e = 0; e < 4; e++)
            {
                const uint h = e / 2, b = 2 * p + e % 2;
                int sum = 0; // exact: at most 2^29
                UNROLL for (uint s = 0; s < UNIT_SCALES; s++)
                    sum += products[p][s][e] * weights.scales[h].whole(i, s);
                d[h * BATCH + b] += float(sum) * x.rows.scales[b][i];
            }
    }

    /// Returns the lane's sums of a tile (SumPlace).
    MEMBER LaneSums of(const GroupRows& x, uint, uint lane) const
    {
        float sums[2 * BATCH];
        UNROLL for (uint k = 0; k < 2 * BATCH; k++) sums[k] = d[k];
        addHalves<2 * BATCH>(sums, lane, 1);
        addHalves<BATCH>(sums, lane, 2);
        float m[4] = {};
#if MINIMUMS
        uint a[4];
        weights.minimums(a);
        multiplyTiles(m, a, x.sums[0], x.sums[1]);
#endif
        LaneSums r;
        UNROLL for (uint h = 0; h < 2; h++)
        {
            r[h] = sums[h] * weights.byteFactor(h);
#if MINIMUMS
            r[h] -= m[2 * h] * weights.minimumFactor(h) * x.inverse;
#endif
        }
        return r;
    }
};
