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

DEVICE Unit decode(Matrix w, uint unit)
{
    Unit r;
    r.m = 0;
    uint block = unit / 8, j = unit % 8;
#if FORMAT == Q2_K || FORMAT == Q3_K
    clear(r);
    addTwoBits(loadAligned<8>((uint2*)w.q + unit), 0, r);
#else
    splitNibbles(loadAligned<16>((uint4*)w.q + unit), r);
#endif

#if FORMAT == Q2_K
    uint scales = uint(w.s[10 * block + j]);
    r.d = halfAt(w.s, 10 * block + 8) * float2(scales & 15, scales >> 8 & 15);
    r.m = halfAt(w.s, 10 * block + 9) * float2(scales >> 4 & 15, scales >> 12);
#elif FORMAT == Q3_K
    uint4 head = loadAligned<16>((uint4*)w.s + block);
    r.d = f16tof32(head.x & 0xffffu) * (float2(sixBits(uint3(head.y, head.z, head.w), j)) - 32);
    addOneBit(w.h[unit], 2, r);
    centre(3, r);
#elif FORMAT == Q6_K
    uint scales = uint(w.s[9 * block + j]);
    r.d = halfAt(w.s, 9 * block + 8) * float2(int(scales << 24) >> 24, int(scales << 16) >> 24);
    addTwoBits(loadAligned<8>((uint2*)w.h + unit), 4, r);
    centre(6, r);
#else // Q4_K, Q5_K
    uint4 head = loadAligned<16>((uint4*)w.s + block);
    float2 dm = halves(head.x) * float2(sixBits(uint3(head.y, head.z, head.w), j));
    r.d = dm.x;
    r.m = dm.y;
#if FORMAT == Q5_K
    addOneBit(w.h[unit], 4, r);
#endif
#endif
    return r;
}

#endif
