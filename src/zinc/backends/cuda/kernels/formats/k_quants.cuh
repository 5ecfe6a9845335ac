// Q2_K to Q6_K: blocks of 256 elements, eight units each. A block starts in `s` with its own scale
// (and minimum), followed by the scales of its units.

#if FORMAT == Q2_K || FORMAT == Q3_K || FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K

#define HALVES (FORMAT == Q2_K || FORMAT == Q3_K || FORMAT == Q6_K)
#define MINIMUMS (FORMAT == Q2_K || FORMAT == Q4_K || FORMAT == Q5_K)
#include "formats/unit.cuh"

DEVICE void loadFormatTables(Matrix w, uint thread, uint threads) {}

/// Element j of two rows of eight 6-bit numbers: `packed` has the low nibbles of each row, then a
/// nibble with the high bits of both.
DEVICE uint2 sixBits(uint3 packed, uint j)
{
    uint at = 4 * j, high = packed.z >> at;
    return uint2((packed.x >> at & 15) | (high & 3) << 4, (packed.y >> at & 15) | (high & 12) << 2);
}

#define PACKED_UNITS 1

/// The bits of a unit as they lie in memory.
struct PackedUnit
{
#if FORMAT == Q2_K || FORMAT == Q3_K
    uint2 q;
#else
    uint4 q;
#endif
#if FORMAT == Q3_K || FORMAT == Q5_K
    uint h;
#elif FORMAT == Q6_K
    uint2 h;
#endif
#if FORMAT == Q2_K || FORMAT == Q6_K
    uint scales, d, m;
#else
    uint4 head;
#endif
};

DEVICE PackedUnit loadUnit(Matrix w, uint unit)
{
    PackedUnit p;
    uint block = unit / 8, j = unit % 8;
#if FORMAT == Q2_K || FORMAT == Q3_K
    p.q = loadWeights8((uint2*)w.q + unit);
#else
    p.q = loadWeights16((uint4*)w.q + unit);
#endif
#if FORMAT == Q3_K || FORMAT == Q5_K
    p.h = loadWeights4(w.h + unit);
#elif FORMAT == Q6_K
    p.h = loadWeights8((uint2*)w.h + unit);
#endif
#if FORMAT == Q2_K
    p.scales = loadWeights2(w.s + 10 * block + j);
    p.d = loadWeights2(w.s + 10 * block + 8);
    p.m = loadWeights2(w.s + 10 * block + 9);
#elif FORMAT == Q6_K
    p.scales = loadWeights2(w.s + 9 * block + j);
    p.d = loadWeights2(w.s + 9 * block + 8);
#else
    p.head = loadWeights16((uint4*)w.s + block);
#endif
    return p;
}

#if FORMAT == Q3_K
#define CENTRED_BITS 3
#elif FORMAT == Q6_K
#define CENTRED_BITS 6
#endif

/// Decodes a unit but leaves elements of CENTRED_BITS unsigned.
DEVICE Unit decodeUnsigned(const PackedUnit& p, uint unit)
{
    Unit r;
    r.m = 0;
    uint j = unit % 8;
#if FORMAT == Q2_K || FORMAT == Q3_K
    clear(r);
    addTwoBits(p.q, 0, r);
#else
    splitNibbles(p.q, r);
#endif

#if FORMAT == Q2_K
    r.d = f16tof32(p.d) * float2(p.scales & 15, p.scales >> 8 & 15);
    r.m = f16tof32(p.m) * float2(p.scales >> 4 & 15, p.scales >> 12);
#elif FORMAT == Q3_K
    uint3 scales = uint3(p.head.y, p.head.z, p.head.w);
    r.d = f16tof32(p.head.x & 0xffffu) * (float2(sixBits(scales, j)) - 32);
    addOneBit(p.h, 2, r);
#elif FORMAT == Q6_K
    r.d = f16tof32(p.d) * float2(int(p.scales << 24) >> 24, int(p.scales << 16) >> 24);
    addTwoBits(p.h, 4, r);
#else // Q4_K, Q5_K
    float2 dm = halves(p.head.x) * float2(sixBits(uint3(p.head.y, p.head.z, p.head.w), j));
    r.d = dm.x;
    r.m = dm.y;
#if FORMAT == Q5_K
    addOneBit(p.h, 4, r);
#endif
#endif
    return r;
}

DEVICE Unit decodeUnit(const PackedUnit& p, uint unit)
{
    Unit r = decodeUnsigned(p, unit);
#ifdef CENTRED_BITS
    centre(CENTRED_BITS, r);
#endif
    return r;
}

DEVICE Unit decode(Matrix w, uint unit) { return decodeUnit(loadUnit(w, unit), unit); }

#endif
