// Products of float32 numbers on tensor cores. A number is the sum of two bfloat16 numbers, `high` and
// `low`, and a product is high * high + high * low + low * high: its relative error is 2^-16.

#pragma once

#include "mma.cuh"

/// Returns two bfloat16 numbers in a word, the first in its low half.
DEVICE uint packBfloats(float low, float high)
{
#ifdef ZINC_EMULATED
    uint words[2] = { asuint(low), asuint(high) };
    UNROLL for (uint i = 0; i < 2; i++) words[i] = (words[i] + 0x7fffu + (words[i] >> 16 & 1)) >> 16;
    return words[0] | words[1] << 16;
#else
    uint r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#endif
}

/// Two float32 numbers as words of bfloat16 numbers.
struct SplitPair
{
    uint high, low;

    MEMBER SplitPair(float x, float y)
    {
        high = packBfloats(x, y);
        low = packBfloats(x - asfloat(high << 16), y - asfloat(high & 0xffff0000u));
    }
};

/// The left operand of `multiplyTiles` in two parts.
struct SplitTile
{
    uint high[4], low[4];

    MEMBER void set(uint i, float x, float y)
    {
        SplitPair pair(x, y);
        high[i] = pair.high;
        low[i] = pair.low;
    }

    /// Converts the sums of two products to an operand of 16 columns: those of `left`, then those of
    /// `right`.
    MEMBER void take(const float (&left)[4], const float (&right)[4])
    {
        UNROLL for (uint i = 0; i < 2; i++)
        {
            set(i, left[2 * i], left[2 * i + 1]);
            set(2 + i, right[2 * i], right[2 * i + 1]);
        }
    }
};

/// `multiplyTiles` for bfloat16 numbers.
DEVICE void multiplyBfloats(float (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
#ifdef ZINC_EMULATED
    emulator::multiply_tiles<emulator::bfloat_to_float>(d, a, b0, b1);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// Adds the product of `a` with 16 columns of `b` to two tiles of sums. Words of b are those of
/// loadMatrices: two for the first eight columns, two for the others.
DEVICE void multiplySplit(
    float (&d0)[4], float (&d1)[4], const SplitTile& a, const uint (&high)[4], const uint (&low)[4])
{
    multiplyBfloats(d0, a.high, high[0], high[1]);
    multiplyBfloats(d1, a.high, high[2], high[3]);
    multiplyBfloats(d0, a.high, low[0], low[1]);
    multiplyBfloats(d1, a.high, low[2], low[3]);
    multiplyBfloats(d0, a.low, high[0], high[1]);
    multiplyBfloats(d1, a.low, high[2], high[3]);
}
