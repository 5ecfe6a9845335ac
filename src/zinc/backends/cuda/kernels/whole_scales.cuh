// Groups of weights in Q4_K, Q5_K and Q6_K: a block of 256 columns each. A weight is q s d - m e, where
// q, s and m are whole numbers, and d and e belong to the block. Tensor cores multiply q s, and m
// by sums of x. d and e are applied to the results.
//
// Numbers are not converted: a whole number n below 1024 has the bits of the float16 number n 2^-24.
// A product with s 2^k is n s 2^(k - 24), exact up to n s = 2048. A number from a high nibble is
// 16 n, so its k is less by 4.

#pragma once

#define WHOLE_FACTOR 16777216.0f // 2^24, which turns such a number into n

#if FORMAT == Q6_K

#define SCALE_FACTOR 256.0f // 2^k

/// The scales of a row's units c and c + 4. Each half of a unit has its own, and its numbers are
/// 32 too large.
struct BlockScales
{
    uint s[2], offset[2];

    BlockScales() = default;

    /// Makes the scales from those of both units as they are stored.
    MEMBER explicit BlockScales(const uint (&stored)[2])
    {
        UNROLL for (uint i = 0; i < 2; i++)
        {
            const uint bytes = __byte_perm(stored[i], 0x64646464u, 0x4140) ^ 0x00800080u;
            const uint scales = subtractHalves(bytes, 0x64806480u); // 1024 + 128 was added
            s[i] = multiplyHalves(scales, 0x4c005c00u);             // 256; 16 for high nibbles
            offset[i] = multiplyHalves(scales, 0x90009000u);        // -32 * 256 / 2^24
        }
    }

    /// Returns q s 2^-16 for a pair of numbers of unit i.
    MEMBER uint scaled(uint numbers, uint i, bool is_high) const
    {
        return is_high ? addProductOfHalves(numbers, secondTwice(s[i]), secondTwice(offset[i]))
                       : addProductOfHalves(numbers, firstTwice(s[i]), firstTwice(offset[i]));
    }
};

/// A lane's units of a block: units c and c + 4 of two rows.
struct StoredGroup
{
    uint4 nibbles[2][2];
    uint2 bits[2][2];
    uint scales[2][2], d[2];

    /// Loads the units c + 4 i and, with the first, the scales.
    MEMBER void load(const GroupPlace& place, uint c, uint i)
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const uint block = place.block(h), unit = block * GROUP_UNITS + 4 * i + c;
            nibbles[h][i] = loadWeights16((uint4*)place.w.q + unit);
            bits[h][i] = loadWeights8((uint2*)place.w.h + unit);
            if (i > 0) continue;
            UNROLL for (uint k = 0; k < 2; k++)
                scales[h][k] = loadWeights2(place.w.s + 9 * block + 4 * k + c);
            d[h] = loadWeights2(place.w.s + 9 * block + 8);
        }
    }

    MEMBER BlockScales scalesOfRow(uint h, uint c) const { return BlockScales(scales[h]); }
    MEMBER float2 factorsOfRow(uint h) const { return float2(f16tof32(d[h]), 0.0f); }

    /// Returns the numbers of a word of unit i: 0 and 2, 1 and 3.
    MEMBER void numbers(uint h, uint i, uint word, uint& even, uint& odd) const
    {
        const uint four = nibbles[h][i][word % 4], two = bits[h][i][word / 4], at = 2 * (word % 4);
        if (word < 4)
        {
            const uint shifted = at < 4 ? two << (4 - at) : two >> (at - 4);
            even = (four & 0x000f000fu) | (shifted & 0x00300030u);
            odd = (four >> 8 & 0x000f000fu) | (two >> (4 + at) & 0x00300030u);
        }
        else
        {
            even = (four & 0x00f000f0u) | (two << (8 - at) & 0x03000300u);
            odd = (four >> 8 & 0x00f000f0u) | (two >> at & 0x03000300u);
        }
    }
};

#else

#define SCALE_FACTOR 1024.0f // 2^k

/// The scales and minimums of a row's units c and c + 4.
struct BlockScales
{
    uint s[2]; // of both units, for low and for high nibbles
    uint m;    // bits of whole numbers

    BlockScales() = default;

    MEMBER BlockScales(uint4 head, uint c)
    {
        const uint low = head.y >> 4 * c, minimums = head.z >> 4 * c, high = head.w >> 4 * c;
        const uint six = (low & 0x000f000fu) | (high << 4 & 0x00300030u);
        s[0] = multiplyHalves(subtractHalves(six | 0x64006400u, 0x64006400u), 0x64006400u);
        s[1] = multiplyHalves(s[0], 0x2c002c00u); // 1 / 16
        m = (minimums & 0x000f000fu) | (high << 2 & 0x00300030u);
    }

    /// Returns q s 2^-14 for a pair of numbers of unit i.
    MEMBER uint scaled(uint numbers, uint i, bool is_high) const
    {
        return multiplyHalves(numbers, i ? secondTwice(s[is_high]) : firstTwice(s[is_high]));
    }
};

/// A lane's units of a block: units c and c + 4 of two rows.
struct StoredGroup
{
    uint4 nibbles[2][2], heads[2];
#if FORMAT == Q5_K
    uint bits[2][2];
#endif

    /// Loads the units c + 4 i and, with the first, the scales.
    MEMBER void load(const GroupPlace& place, uint c, uint i)
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const uint block = place.block(h), unit = block * GROUP_UNITS + 4 * i + c;
            nibbles[h][i] = loadWeights16((uint4*)place.w.q + unit);
#if FORMAT == Q5_K
            bits[h][i] = loadWeights4(place.w.h + unit);
#endif
            if (i == 0) heads[h] = loadWeights16((uint4*)place.w.s + block);
        }
    }

    MEMBER BlockScales scalesOfRow(uint h, uint c) const { return BlockScales(heads[h], c); }
    MEMBER float2 factorsOfRow(uint h) const { return halves(heads[h].x); }

    /// Returns the numbers of a word of unit i: 0 and 2, 1 and 3.
    MEMBER void numbers(uint h, uint i, uint word, uint& even, uint& odd) const
    {
        const uint four = nibbles[h][i][word % 4], mask = word < 4 ? 0x000f000fu : 0x00f000f0u;
        even = four & mask;
        odd = four >> 8 & mask;
#if FORMAT == Q5_K
        const uint one = bits[h][i], bit = word < 4 ? 0x00100010u : 0x01000100u;
        even |= one << ((word < 4 ? 4 : 8) - word) & bit;
        odd |= one >> (word < 4 ? 4 + word : word) & bit;
#endif
    }
};

#endif

/// The products of a block with the rows of x.
struct GroupProducts
{
    BlockScales scales[2];
    float2 factors[2];
    float d[X_TILES][CHAINS][4];

    MEMBER GroupProducts(const StoredGroup& w, uint c) : d {}
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            scales[h] = w.scalesOfRow(h, c);
            factors[h] = w.factorsOfRow(h);
        }
    }

    /// Adds the products of the units c + 4 i.
    MEMBER void add(const StoredGroup& w, const GroupRows& x, uint i)
    {
        UNROLL for (uint word = 0; word < STEPS; word++)
        {
            uint a[4];
            UNROLL for (uint h = 0; h < 2; h++)
            {
                uint even, odd;
                w.numbers(h, i, word, even, odd);
                a[h] = scales[h].scaled(even, i, word >= 4);
                a[h + 2] = scales[h].scaled(odd, i, word >= 4);
            }
            UNROLL for (uint j = 0; j < X_TILES; j++)
                multiplyTiles(d[j][word % CHAINS], a, x.numbers[j][i][word][0], x.numbers[j][i][word][1]);
        }
    }

    /// Returns the products with 8 rows of x, as `multiplyTiles` has sums.
    MEMBER float4 of(const GroupRows& x, uint j) const
    {
        float m[4] = {};
#if MINIMUMS
        const uint a[4] = { scales[0].m, scales[1].m, scales[0].m, scales[1].m };
        multiplyTiles(m, a, x.sums[j][0], x.sums[j][1]);
#endif
        float4 r;
        UNROLL for (uint e = 0; e < 4; e++)
        {
            float sum = totalOf(d[j], e) * (factors[e / 2].x * (WHOLE_FACTOR / SCALE_FACTOR));
            if (MINIMUMS) sum -= m[e] * (factors[e / 2].y * (WHOLE_FACTOR / SUM_FACTOR));
            r[e] = sum * x.inverses[j][e % 2];
        }
        return r;
    }
};
