// IQ4_NL, IQ4_XS, MXFP4 and NVFP4: 4-bit codes that index a table of 16 values.

#if FORMAT == IQ4_NL || FORMAT == IQ4_XS || FORMAT == MXFP4 || FORMAT == NVFP4

#define HALVES (FORMAT == NVFP4)
#define MINIMUMS 0
#include "formats/unit.cuh"

#if FORMAT == MXFP4 || FORMAT == NVFP4
// E2M1 numbers, doubled.
constexpr int VALUES[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
#else
constexpr int VALUES[16]
    = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
#endif
// The values of both codes of a byte, so that a word takes four lookups.
SHARED uint valuePairs[256];

DEVICE void loadFormatTables(Matrix w, uint thread, uint threads)
{
    for (uint i = thread; i < 256; i += threads)
        valuePairs[i] = (uint(VALUES[i & 15]) & 0xffu) | (uint(VALUES[i >> 4]) & 0xffu) << 16;
    __syncthreads();
}

/// Looks up eight codes: those in the low nibbles of four bytes, and those in the high nibbles.
DEVICE void lookUp(uint codes, uint& low, uint& high)
{
    uint a = valuePairs[codes & 0xffu], b = valuePairs[codes >> 8 & 0xffu];
    uint c = valuePairs[codes >> 16 & 0xffu], d = valuePairs[codes >> 24];
    low = (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | d << 24;
    high = a >> 16 | (b >> 16) << 8 | (c >> 16) << 16 | (d >> 16) << 24;
}

/// Half of an unsigned E4M3 number. NaN reads as 0.
DEVICE float e4m3Halved(uint code)
{
    uint exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 0xff) == 0x7f) return 0;
    return exponent == 0 ? float(mantissa) / 1024 : asfloat(exponent + 119 << 23 | mantissa << 20);
}

DEVICE Unit decode(Matrix w, uint unit)
{
    Unit r;
    r.m = 0;
    uint4 x = loadAligned<16>((uint4*)w.q + unit);
    UNROLL for (int i = 0; i < 4; i++) lookUp(x[i], r.q[i], r.q[i + 4]);

#if FORMAT == IQ4_NL
    r.d = halfAt(w.s, unit);
#elif FORMAT == MXFP4
    // 2^(e - 128), half of E8M0 because the values are doubled. It is denormal for e < 2.
    uint e = uint(((uint8_t*)w.s)[unit]);
    r.d = asfloat(e < 2 ? 0x00200000u << e : e - 1 << 23);
#elif FORMAT == NVFP4
    uint e = uint(w.s[unit]);
    r.d = float2(e4m3Halved(e), e4m3Halved(e >> 8));
#else
    // IQ4_XS: a block of eight units has d, the high bits of their scales, then the low ones.
    uint block = unit / 8, j = unit % 8;
    uint2 head = loadAligned<8>((uint2*)w.s + block);
    uint scale = (head.y >> 4 * j & 15) | (head.x >> (16 + 2 * j) & 3) << 4;
    r.d = f16tof32(head.x & 0xffffu) * float(int(scale) - 32);
#endif
    return r;
}

#endif
