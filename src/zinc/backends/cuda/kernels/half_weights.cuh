// Weights of quantised formats as float16 operands of tensor cores, decoded in registers.
//
// Lane c of a quad decodes whole units: in a slab of 128 columns unit c of the weight rows lane / 4
// and lane / 4 + 8. Word s of a unit has the columns of step s (half_rows.cuh), so operands need
// neither shuffles nor shared memory.
//
// Integer instructions limit the speed. Therefore nibbles are converted without being shifted first,
// and the scales of common formats are computed in float16.

#pragma once

#include "formats.cuh"
#include "half_pairs.cuh"

#define NIBBLES (FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q4_K)
#define WORDS (NIBBLES ? 4 : 8)

// Weights are multiplied by WEIGHT_FACTOR, so that small weights do not become subnormal.
#define WEIGHT_FACTOR 64.0f
#define FACTOR_HALF 0x5400u

#if PACKED_UNITS
typedef PackedUnit StoredUnit;
DEVICE StoredUnit loadStored(Matrix w, uint unit) { return loadUnit(w, unit); }
#ifdef CENTRED_BITS
DEVICE Unit decodeStored(const StoredUnit& p, uint unit) { return decodeUnsigned(p, unit); }
#else
DEVICE Unit decodeStored(const StoredUnit& p, uint unit) { return decodeUnit(p, unit); }
#endif
#else
typedef Unit StoredUnit;
DEVICE StoredUnit loadStored(Matrix w, uint unit) { return decode(w, unit); }
DEVICE Unit decodeStored(const StoredUnit& p, uint unit) { return p; }
#endif

/// Scales and negated minimums of the halves of a unit, as pairs of equal numbers.
struct HalfScales
{
    uint d[1 + HALVES], m[1 + HALVES];
};

DEVICE uint firstTwice(uint pair) { return __byte_perm(pair, 0, 0x1010); }
DEVICE uint secondTwice(uint pair) { return __byte_perm(pair, 0, 0x3232); }

#if FORMAT == Q4_K || FORMAT == Q5_K

DEVICE HalfScales halfScales(const StoredUnit& p, const Unit& decoded, uint unit)
{
    uint2 six = sixBits(uint3(p.head.y, p.head.z, p.head.w), unit % 8);
    uint numbers = subtractHalves(six.x | six.y << 16 | 0x64006400u, 0x64006400u);
    uint dm = multiplyHalves(p.head.x, FACTOR_HALF | (FACTOR_HALF | 0x8000u) << 16);
    uint pair = multiplyHalves(dm, numbers);
    HalfScales r;
    r.d[0] = firstTwice(pair);
    r.m[0] = secondTwice(pair);
    return r;
}

#elif FORMAT == Q6_K

DEVICE HalfScales halfScales(const StoredUnit& p, const Unit& decoded, uint unit)
{
    uint bytes = __byte_perm(p.scales, 0x64646464u, 0x4140) ^ 0x00800080u;
    uint d = multiplyHalves(p.d | p.d << 16, FACTOR_HALF * 0x10001u);
    uint pair = multiplyHalves(d, subtractHalves(bytes, 0x64806480u));
    HalfScales r;
    r.d[0] = firstTwice(pair);
    r.d[1] = secondTwice(pair);
    return r;
}

#else

DEVICE HalfScales halfScales(const StoredUnit& p, const Unit& decoded, uint unit)
{
    HalfScales r;
    UNROLL for (uint h = 0; h < 1 + HALVES; h++)
    {
        r.d[h] = twice(WEIGHT_FACTOR * decoded.d[h]);
        r.m[h] = twice(-WEIGHT_FACTOR * decoded.m[h]);
    }
    return r;
}

#endif

/// A unit of weights times WEIGHT_FACTOR.
struct HalfUnit
{
    uint q[WORDS]; // one element per byte or, as in memory, two nibbles per byte
    HalfScales scales;

    HalfUnit() = default;

    MEMBER HalfUnit(const StoredUnit& p, uint unit)
    {
        const Unit decoded = decodeStored(p, unit);
        scales = halfScales(p, decoded, unit);
#if NIBBLES
        UNROLL for (uint i = 0; i < WORDS; i++) q[i] = p.q[i];
#else
        UNROLL for (uint i = 0; i < WORDS; i++) q[i] = decoded.q[i];
#endif
    }

    /// Returns the four weights of a word: 0 and 2, 1 and 3.
    MEMBER void pairs(uint word, uint& low, uint& high) const
    {
        uint d = scales.d[HALVES ? word / 4 : 0];
        numbers(word, low, high);
#if NIBBLES
        if (word >= 4) d = multiplyHalves(d, 0x2c002c00u); // high nibbles are 16 times as large
#endif
#if MINIMUMS
        const uint m = scales.m[HALVES ? word / 4 : 0];
        low = addProductOfHalves(low, d, m);
        high = addProductOfHalves(high, d, m);
#else
        low = multiplyHalves(low, d);
        high = multiplyHalves(high, d);
#endif
    }

private:
    /// Returns the numbers of a word before they are scaled.
    MEMBER void numbers(uint word, uint& low, uint& high) const
    {
#if NIBBLES
        const uint bytes = q[word % 4], mask = word < 4 ? 0x000f000fu : 0x00f000f0u;
        low = subtractHalves((bytes & mask) | 0x64006400u, 0x64006400u);
        high = subtractHalves((bytes >> 8 & mask) | 0x64006400u, 0x64006400u);
#elif defined(CENTRED_BITS)
        halvesOfBytes<0, 1 << (CENTRED_BITS - 1)>(q[word], low, high);
#else
        halvesOfSigned(q[word], low, high);
#endif
    }
};
