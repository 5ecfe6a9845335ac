// A decoded unit of a quantised format, and the bit operations that decoders share.

#pragma once

#include "prelude.cuh"

#define UNIT 32

/// 32 elements. Element 4 i + j is d * q - m, where q is the signed byte j of q[i]; d.x and m.x
/// belong to the first 16 elements, d.y and m.y to the others.
struct Unit
{
    uint q[8];
    float2 d, m;
};

DEVICE float halfAt(uint16_t* p, uint i) { return f16tof32(uint(p[i])); }
DEVICE float2 halves(uint word) { return float2(f16tof32(word & 0xffffu), f16tof32(word >> 16)); }

DEVICE void clear(Unit& unit)
{
    UNROLL for (int i = 0; i < 8; i++) unit.q[i] = 0;
}

/// Splits 16 bytes into elements 0-15, their low nibbles, and elements 16-31, their high nibbles.
DEVICE void splitNibbles(uint4 x, Unit& unit)
{
    UNROLL for (int i = 0; i < 4; i++)
    {
        unit.q[i] = x[i] & 0x0f0f0f0fu;
        unit.q[i + 4] = x[i] >> 4 & 0x0f0f0f0fu;
    }
}

/// Adds bit i of byte j of `x` to element 4 i + j, as its bit `shift`.
DEVICE void addOneBit(uint x, int shift, Unit& unit)
{
    UNROLL for (int i = 0; i < 8; i++)
        unit.q[i] |= (shift > i ? x << (shift - i) : x >> (i - shift)) & 0x01010101u << shift;
}

/// Adds bits 2 c and 2 c + 1 of byte j of x[k] to element 16 k + 4 c + j, from its bit `shift` on.
DEVICE void addTwoBits(uint2 x, int shift, Unit& unit)
{
    UNROLL for (int i = 0; i < 8; i++)
    {
        int at = 2 * (i & 3);
        uint word = x[i >> 2];
        unit.q[i] |= (shift > at ? word << (shift - at) : word >> (at - shift))
            & 0x03030303u << shift;
    }
}

/// Subtracts 2^(bits - 1) from unsigned elements of `bits` bits, which makes them signed bytes.
DEVICE void centre(int bits, Unit& unit)
{
    uint top = 0x01010101u << (bits - 1);
    UNROLL for (int i = 0; i < 8; i++)
    {
        uint x = unit.q[i] ^ top;
        unit.q[i] = x | (x & top) * ((0xffu << bits & 0xffu) >> (bits - 1));
    }
}

/// Element i of a unit as a float.
DEVICE float element(Unit unit, uint i)
{
    uint half = i / 16;
    int q = int(unit.q[i / 4] << (24 - 8 * (i % 4))) >> 24;
    return unit.d[half] * float(q) - unit.m[half];
}

DEVICE Unit decode(Matrix w, uint unit);  // defined by the format

DEVICE void decode(Matrix w, uint unit, float (&v)[UNIT])
{
    Unit u = decode(w, unit);
    UNROLL for (uint i = 0; i < UNIT; i++) v[i] = element(u, i);
}
