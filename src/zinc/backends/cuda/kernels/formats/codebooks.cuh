// IQ1, IQ2 and IQ3: groups of four or eight elements are points of a codebook
// (zinc.gpu.iq_packing). `q` has the low eight bits of point numbers, `h` the signs of eight
// elements per byte, `s` the codebook and then for each block of eight units their high bits and
// scales, and d.

#define IQ1 (FORMAT == IQ1_S || FORMAT == IQ1_M)
#define IQ2 (FORMAT == IQ2_XXS || FORMAT == IQ2_XS || FORMAT == IQ2_S)
#define IQ3 (FORMAT == IQ3_XXS || FORMAT == IQ3_S)

#if IQ1 || IQ2 || IQ3

#define HALVES (IQ1 || IQ2)
#define MINIMUMS 0
#include "formats/unit.cuh"

#if IQ1
#define POINTS 2048
#elif FORMAT == IQ2_S
#define POINTS 1024
#elif FORMAT == IQ2_XS || FORMAT == IQ3_S
#define POINTS 512
#else
#define POINTS 256
#endif
SHARED uint points[POINTS / 2]; // two points per word

DEVICE void loadFormatTables(Matrix w, uint thread, uint threads)
{
    for (uint i = thread; i < POINTS / 2; i += threads) points[i] = ((uint*)w.s)[i];
    __syncthreads();
}

DEVICE uint point(uint index) { return points[index / 2] >> 16 * (index & 1) & 0xffffu; }

/// Spreads four numbers of `width` bits, from the low end of x, over the bytes of a word.
DEVICE uint fourBytes(uint x, uint width)
{
    uint mask = (1u << width) - 1, shift = 8 - width;
    return (x & mask) | (x << shift & mask << 8) | (x << 2 * shift & mask << 16)
        | (x << 3 * shift & mask << 24);
}

/// Negates byte i of `bytes` if bit i of `signs` is set, for i in 0 to 3. The bytes are positive.
DEVICE uint withSigns(uint bytes, uint signs)
{
    uint minus = (signs & 15) * 0x00204081u & 0x01010101u;
    return (bytes ^ minus * 0xffu) + minus;
}

// Ranks are indices into the few values that elements of a format have.
#if IQ3

DEVICE void decodePoints(Matrix w, uint unit, uint extra, Unit& r)
{
    uint2 low = loadAligned<8>((uint2*)w.q + unit);
    uint signs = w.h[unit];
    UNROLL for (int i = 0; i < 8; i++)
    {
        uint x = point((low[i / 4] >> 8 * (i % 4) & 0xffu) | (extra >> i & 1) << 8);
        uint rank = fourBytes(x, 3);
#if FORMAT == IQ3_S
        uint bytes = 0x01010101u + 2 * rank;
#else // 4, 12 ... 52, and 62 for the last
        uint bytes = 0x04040404u + 8 * rank + 2 * (rank & rank >> 1 & rank >> 2 & 0x01010101u);
#endif
        r.q[i] = withSigns(bytes, signs >> 4 * i);
    }
}

#elif IQ2

DEVICE void decodePoints(Matrix w, uint unit, uint extra, Unit& r)
{
    uint low = ((uint*)w.q)[unit], signs = w.h[unit];
    UNROLL for (int i = 0; i < 8; i++)
    {
        int group = i / 2;
        uint number = (low >> 8 * group & 0xffu) | (extra >> 2 * group & 3) << 8;
        uint rank = fourBytes(point(number) >> 8 * (i % 2), 2);
        uint bytes = 0x08080808u + 17 * rank + (rank >> 1 & 0x01010101u); // 8, 25, 43
        r.q[i] = withSigns(bytes, signs >> 4 * i);
    }
}

#else

DEVICE void decodePoints(Matrix w, uint unit, uint extra, Unit& r)
{
    uint low = ((uint*)w.q)[unit];
    UNROLL for (int i = 0; i < 8; i++)
    {
        int group = i / 2;
        uint number = low >> 8 * group & 0xffu, nibble = extra >> 4 * group;
        uint rank = fourBytes(point(number | (nibble & 7) << 8) >> 8 * (i % 2), 2);
        // Elements are multiples of 1/8: rank - 1, shifted by +1/8 or -1/8.
        r.q[i] = 8 * rank + ((nibble & 8) != 0 ? 0x77777777u : 0x79797979u) ^ 0x80808080u;
    }
}

#endif

DEVICE Unit decode(Matrix w, uint unit)
{
    Unit r;
    r.m = 0;
    uint block = unit / 8, j = unit % 8;
#if IQ1
    uint16_t* head = w.s + POINTS + 13 * block;
    decodePoints(w, unit, uint(head[j]), r);
    uint scales = uint(head[8 + j / 2]) >> 8 * (j & 1);
    r.d = halfAt(head, 12) * (float2(scales & 7, scales >> 4 & 7) * 0.25f + 0.125f);
#else
    uint16_t* head = w.s + POINTS + 9 * block;
    uint scales = uint(head[j]);
    decodePoints(w, unit, scales & 0xffu, r);
    float2 two = float2(scales >> 8 & 15, scales >> 12);
#if FORMAT == IQ3_S
    r.d = halfAt(head, 8) * (two * 2 + 1);
#elif FORMAT == IQ3_XXS
    r.d = halfAt(head, 8) * (two * 0.5f + 0.25f);
#else
    r.d = halfAt(head, 8) * (two * 0.25f + 0.125f);
#endif
#endif
    return r;
}

#endif
