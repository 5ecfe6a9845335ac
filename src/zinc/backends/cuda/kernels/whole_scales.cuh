// Groups of weights in Q4_K, Q5_K and Q6_K, whose blocks have 256 columns. A weight is q s d - m e:
// q, s and m are integers, and d and e are the scales of the block. Tensor cores multiply x by q s,
// and the sums of x by m. With FOLD_MINIMUMS they multiply x by q s - m e / d instead. The factors
// d and e are applied to the results.
//
// Integers need no conversion to float16: the bits of an integer n below 1024 are those of the
// subnormal float16 n 2^-24. The product with s 2^k is n s 2^(k - 24), exact up to n s = 2048. A
// value that stays in a high nibble is 16 n, so its k is smaller by 4.

#pragma once

#define WHOLE_FACTOR 16777216.0f // 2^24, turns the float16 n 2^-24 into n
#define SUM_FACTOR 0.015625f     // scales sums of x to the range of float16

#if FORMAT == Q6_K

/// Returns the bits in `mask` from a and all others from b. It is inline assembly because the
/// compiler would split the LOP3 where it knows that some bits are not used.
DEVICE uint selectBits(uint mask, uint a, uint b)
{
#ifdef ZINC_EMULATED
    return (a & mask) | (b & ~mask);
#else
    uint r;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
    return r;
#endif
}

#define SCALE_FACTOR 256.0f // 2^k
#define GROUP_BYTES 3072    // bytes of a warp's group in shared memory
#define BYTE_FACTOR 4.0f    // factor of weights as signed bytes

/// The scales of a row's units c and c + 4: one for each half of a unit. Stored values are 32 too
/// large, which `offset` corrects.
struct BlockScales
{
    uint s[2], offset[2];
    uint bytes[2]; // integer scales of the halves of each unit

    BlockScales() = default;

    /// Decodes the stored scales of both units.
    MEMBER explicit BlockScales(const uint (&stored)[2])
    {
        UNROLL for (uint i = 0; i < 2; i++)
        {
            const uint large = __byte_perm(stored[i], 0x64646464u, 0x4140) ^ 0x00800080u;
            const uint scales = subtractHalves(large, 0x64806480u); // 1024 + 128 was added
            s[i] = multiplyHalves(scales, 0x5c005c00u);             // 256
            offset[i] = multiplyHalves(scales, 0x90009000u);        // -32 * 256 / 2^24
            bytes[i] = stored[i];
        }
    }

    /// Returns the scale of a half of unit i.
    MEMBER int whole(uint i, uint half) const { return int(int8_t(bytes[i] >> 8 * half)); }

    MEMBER void clear() { s[0] = s[1] = offset[0] = offset[1] = 0; }
    MEMBER void foldMinimums(float) {}

    /// Returns q s 2^-16 for a pair of numbers of unit i.
    MEMBER uint scaled(uint numbers, uint i, bool is_high) const
    {
        return is_high ? addProductOfHalves(numbers, secondTwice(s[i]), secondTwice(offset[i]))
                       : addProductOfHalves(numbers, firstTwice(s[i]), firstTwice(offset[i]));
    }
};

/// A lane's part of a block as stored in memory: units c and c + 4 of two rows.
struct StoredGroup
{
    uint4 nibbles[2][2];
    uint2 bits[2][2];
    uint scales[2][2], d[2];

    /// Loads the units c + 4 i and, with the first, the scales.
    MEMBER void load(const GroupPlace& place, uint c, uint i)
    {
        const uint unit = place.block() * GROUP_UNITS + c;
        const uint4* q = (uint4*)place.w.q + unit;
        const uint2* high = (uint2*)place.w.h + unit;
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const uint units = GROUP_UNITS * place.blocksTo(h) + 4 * i;
            nibbles[h][i] = loadWeights16(place.inMatrix(q + units, h));
            bits[h][i] = loadWeights8(place.inMatrix(high + units, h));
        }
        if (i == 0) loadScales(place, c);
    }

    /// Loads the scales, whose alignment does not allow asynchronous copies.
    MEMBER void loadScales(const GroupPlace& place, uint c)
    {
        const uint16_t *s = place.w.s + 9 * place.block(), *own = s + c;
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const uint at = 9 * place.blocksTo(h);
            UNROLL for (uint k = 0; k < 2; k++)
                scales[h][k] = loadWeights2(place.inMatrix(own + at + 4 * k, h));
            d[h] = loadWeights2(place.inMatrix(s + at + 8, h));
        }
    }

    /// Starts asynchronous copies of a warp's group to shared memory, without the scales.
    MEMBER static void copy(uint8_t* shared, const GroupPlace& place, uint lane)
    {
        const uint unit = place.block() * GROUP_UNITS + lane % 4;
        const uint4* q = (uint4*)place.w.q + unit;
        const uint2* high = (uint2*)place.w.h + unit;
        UNROLL for (uint k = 0; k < 4; k++)
        {
            const uint units = GROUP_UNITS * place.blocksTo(k / 2) + k % 2 * 4;
            copyAsync((uint4*)shared + k * SUBGROUP + lane, q + units, true);
            copySmallAsync<8>((uint2*)(shared + 2048) + k * SUBGROUP + lane, high + units);
        }
    }

    /// Reads a lane's part of a group that `copy` has copied.
    MEMBER void read(const uint8_t* shared, uint lane)
    {
        UNROLL for (uint k = 0; k < 4; k++)
        {
            nibbles[k / 2][k % 2] = ((const uint4*)shared)[k * SUBGROUP + lane];
            bits[k / 2][k % 2] = ((const uint2*)(shared + 2048))[k * SUBGROUP + lane];
        }
    }

    MEMBER BlockScales scalesOfRow(uint h, uint c) const { return BlockScales(scales[h]); }
    MEMBER float2 factorsOfRow(uint h) const { return float2(f16tof32(d[h]), 0.0f); }

    /// Unpacks a word of unit i to values 0 and 2 (even) and 1 and 3 (odd).
    MEMBER void numbers(uint h, uint i, uint word, uint& even, uint& odd) const
    {
        const uint four = nibbles[h][i][word % 4] >> (word < 4 ? 0 : 4);
        const uint two = bits[h][i][word / 4], at = 2 * (word % 4);
        const uint high = at < 4 ? two << (4 - at) : two >> (at - 4); // in bits 4 and 5 of bytes
        const uint bytes = selectBits(0x0f0f0f0fu, four, high);
        even = bytes & 0x003f003fu;
        odd = bytes >> 8 & 0x003f003fu;
    }

    /// Returns the weights of a word of unit i, times BYTE_FACTOR, as four signed bytes.
    MEMBER uint bytes(uint h, uint i, uint word) const
    {
        // Flipping the highest bit of a 6-bit number subtracts 32.
        const uint four = nibbles[h][i][word % 4], two = bits[h][i][word / 4] ^ 0xaaaaaaaau;
        const uint low = word < 4 ? four << 2 : four >> 2, high = two << (6 - 2 * (word % 4));
        return (low & 0x3c3c3c3cu) | (high & 0xc0c0c0c0u);
    }
};

#else

#define SCALE_FACTOR 1024.0f // 2^k
#define GROUP_BYTES (FORMAT == Q5_K ? 2816 : 2304) // of a warp's group in shared memory
#define BYTE_FACTOR 1.0f // factor of weights as signed bytes

/// The scales and minimums of a row's units c and c + 4.
struct BlockScales
{
    uint integers; // scales of both units
    uint s[2];     // as float16 of both units, for low and for high nibbles
    uint m;        // integer minimums; after `foldMinimums`, the float16 offsets of operands

    BlockScales() = default;

    MEMBER BlockScales(uint4 head, uint c)
    {
        const uint low = head.y >> 4 * c, minimums = head.z >> 4 * c, high = head.w >> 4 * c;
        integers = (low & 0x000f000fu) | (high << 4 & 0x00300030u);
        s[0] = multiplyHalves(subtractHalves(integers | 0x64006400u, 0x64006400u), 0x64006400u);
        s[1] = multiplyHalves(s[0], 0x2c002c00u); // 1 / 16
        m = (minimums & 0x000f000fu) | (high << 2 & 0x00300030u);
    }

    MEMBER void clear() { s[0] = s[1] = 0; }

    /// Returns the scale of unit i, which has no halves.
    MEMBER int whole(uint i, uint) const { return int(i ? integers >> 16 : integers & 0xffffu); }

    /// Replaces `m` by -m e / d 2^-14, which `scaled` adds to each operand. ratio: e / d.
    MEMBER void foldMinimums(float ratio)
    {
        const uint numbers = subtractHalves(m | 0x64006400u, 0x64006400u);
        m = multiplyHalves(numbers, twice(ratio * (-SCALE_FACTOR / WHOLE_FACTOR)));
    }

    /// Returns q s 2^-14 for a pair of numbers of unit i.
    MEMBER uint scaled(uint numbers, uint i, bool is_high) const
    {
        const uint scale = i ? secondTwice(s[is_high]) : firstTwice(s[is_high]);
#if FOLD_MINIMUMS
        return addProductOfHalves(numbers, scale, i ? secondTwice(m) : firstTwice(m));
#else
        return multiplyHalves(numbers, scale);
#endif
    }
};

/// A lane's part of a block as stored in memory: units c and c + 4 of two rows.
struct StoredGroup
{
    uint4 nibbles[2][2], heads[2];
#if FORMAT == Q5_K
    uint bits[2][2];
#endif

    /// Loads the units c + 4 i and, with the first, the scales.
    MEMBER void load(const GroupPlace& place, uint c, uint i)
    {
        const uint block = place.block(), unit = block * GROUP_UNITS + c;
        const uint4 *q = (uint4*)place.w.q + unit, *s = (uint4*)place.w.s + block;
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const uint blocks = place.blocksTo(h), units = GROUP_UNITS * blocks + 4 * i;
            nibbles[h][i] = loadWeights16(place.inMatrix(q + units, h));
#if FORMAT == Q5_K
            bits[h][i] = loadWeights4(place.inMatrix(place.w.h + unit + units, h));
#endif
            if (i == 0) heads[h] = loadWeights16(place.inMatrix(s + blocks, h));
        }
    }

    MEMBER void loadScales(const GroupPlace&, uint) {}

    /// Starts asynchronous copies of a warp's group to shared memory. Lanes 0 and 1 of a quad copy
    /// the heads of its two rows.
    MEMBER static void copy(uint8_t* shared, const GroupPlace& place, uint lane)
    {
        const uint c = lane % 4, block = place.block(), unit = block * GROUP_UNITS + c;
        const uint4 *q = (uint4*)place.w.q + unit, *s = (uint4*)place.w.s + block;
        uint4* heads = (uint4*)(shared + 2048) + lane / 4;
        UNROLL for (uint k = 0; k < 4; k++)
        {
            const uint units = GROUP_UNITS * place.blocksTo(k / 2) + k % 2 * 4;
            copyAsync((uint4*)shared + k * SUBGROUP + lane, q + units, true);
#if FORMAT == Q5_K
            copySmallAsync<4>((uint*)(shared + 2304) + k * SUBGROUP + lane, place.w.h + unit + units);
#endif
        }
        if (c < 2) copyAsync(heads + 8 * c, s + (c ? place.blocksTo(1) : 0), true);
    }

    /// Reads a lane's part of a group that `copy` has copied.
    MEMBER void read(const uint8_t* shared, uint lane)
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            UNROLL for (uint i = 0; i < 2; i++)
            {
                const uint at = (2 * h + i) * SUBGROUP + lane;
                nibbles[h][i] = ((const uint4*)shared)[at];
#if FORMAT == Q5_K
                bits[h][i] = ((const uint*)(shared + 2304))[at];
#endif
            }
            heads[h] = ((const uint4*)(shared + 2048))[lane / 4 + 8 * h];
        }
    }

    MEMBER BlockScales scalesOfRow(uint h, uint c) const { return BlockScales(heads[h], c); }
    MEMBER float2 factorsOfRow(uint h) const { return halves(heads[h].x); }

    /// Unpacks a word of unit i to values 0 and 2 (even) and 1 and 3 (odd).
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

    /// Returns the weights of a word of unit i as four bytes.
    MEMBER uint bytes(uint h, uint i, uint word) const
    {
        const uint four = nibbles[h][i][word % 4] >> (word < 4 ? 0 : 4) & 0x0f0f0f0fu;
#if FORMAT == Q5_K
        const uint one = bits[h][i];
        return four | ((word < 4 ? one << (4 - word) : one >> (word - 4)) & 0x10101010u);
#else
        return four;
#endif
    }
};

#endif

#if FOLD_MINIMUMS
/// Returns whether products with d are negligible beside those with e: d is 0, or e / d exceeds the
/// range of float16. factors: d and e.
DEVICE bool isNegligible(float2 factors)
{
    return abs(factors.y) >= 60000.0f * abs(factors.x);
}
#endif

/// The MMA operands of a block. `factor` of a row scales its products.
struct GroupWeights
{
    BlockScales scales[2];
    float2 factors[2];
#if FOLD_MINIMUMS
    float inverses[2]; // 1 / factors.x
#endif

    MEMBER GroupWeights(const StoredGroup& w, uint c)
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            scales[h] = w.scalesOfRow(h, c);
            factors[h] = w.factorsOfRow(h);
#if FOLD_MINIMUMS
            if (isNegligible(factors[h]))
            {
                scales[h].clear();
                factors[h].x = factors[h].y == 0 ? 1.0f : factors[h].y;
            }
            inverses[h] = approximateInverse(factors[h].x);
            scales[h].foldMinimums(factors[h].y * inverses[h]);
#endif
        }
    }

    MEMBER void prepare(const StoredGroup& w, uint i) {}

    /// Returns the MMA operand of one word of the units c + 4 i.
    MEMBER void fragment(const StoredGroup& w, uint i, uint word, uint (&a)[4]) const
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            uint even, odd;
            w.numbers(h, i, word, even, odd);
            a[h] = scales[h].scaled(even, i, word >= 4);
            a[h + 2] = scales[h].scaled(odd, i, word >= 4);
        }
    }

    /// Returns the factor that scales the products of row h.
    MEMBER float factor(uint h) const { return factors[h].x * (WHOLE_FACTOR / SCALE_FACTOR); }

    /// Returns the factor that scales the products of `bytes` and integer scales of row h.
    MEMBER float byteFactor(uint h) const { return factors[h].x / BYTE_FACTOR; }

#if FOLD_MINIMUMS
    /// Returns 1 / `factor(h)`.
    MEMBER float inverse(uint h) const { return inverses[h] * (SCALE_FACTOR / WHOLE_FACTOR); }
#endif

#if MINIMUMS && !FOLD_MINIMUMS
    /// Returns the MMA operand of the minimums, which multiplies the sums of x.
    MEMBER void minimums(uint (&a)[4]) const
    {
        UNROLL for (uint e = 0; e < 4; e++) a[e] = scales[e % 2].m;
    }

    /// Returns the factor that scales the product of the minimums of row h with the sums of x.
    MEMBER float minimumFactor(uint h) const { return factors[h].y * (WHOLE_FACTOR / SUM_FACTOR); }
#endif
};
