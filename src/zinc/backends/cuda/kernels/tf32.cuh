// Products of float32 numbers on tensor cores. A number is the sum of two TF32 numbers of 11 significant
// bits: `high` is the nearest, `low` the rest. A product is high * high + high * low + low * high,
// whose relative error is about 2^-22.
//
// `multiplySingles` is mma.sync.m16n8k8: D[16][8] += A[16][8] * B[8][8]. With q = lane / 4 and
// c = lane % 4, a lane holds these numbers, and D as `multiplyTiles` does (mma.cuh):
//
//     a[0] = A[q][c]      a[1] = A[q + 8][c]      a[2] = A[q][c + 4]      a[3] = A[q + 8][c + 4]
//     b[0] = B[c][q]      b[1] = B[c + 4][q]

#pragma once

#include "mma.cuh"

#ifdef ZINC_EMULATED

#include "tf32.h"

DEVICE void multiplySingles(float (&d)[4], const uint (&a)[4], const uint (&b)[2])
{
    emulator::multiply_singles(d, a, b);
}

#else

/// Multiplies float32 numbers of which only the bits of TF32 are read.
DEVICE void multiplySingles(float (&d)[4], const uint (&a)[4], const uint (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

/// The operand of a lane, N numbers in two parts.
template <uint N> struct SplitSingles
{
    uint high[N], low[N];

    MEMBER void set(uint i, float x)
    {
        high[i] = asuint(x) + 0x1000u & 0xffffe000u;
        low[i] = asuint(x - asfloat(high[i]));
    }
};
