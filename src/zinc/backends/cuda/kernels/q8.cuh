// Rows of 8-bit activations: [cols int8, padded to 16 bytes][cols / 32 x (float d, float s)]. A
// block of 32 numbers is d * q with d = largest magnitude / 127, and s is d times the sum of q.

#pragma once

#include "prelude.cuh"

DEVICE uint packSigned(int4 q)
{
    uint4 b = uint4(q) & 0xffu;
    return b.x | b.y << 8 | b.z << 16 | b.w << 24;
}

/// Returns the factor that quantises a block with the largest magnitude `top`: 127 / top. A factor
/// of 0 stores the smallest numbers as zeros, because 127 / top could be infinite.
DEVICE float inverseScale(float top) { return top > 1e-30f ? 127.0f / top : 0.0f; }

/// Stores four columns, starting at `col`, of a block. The eight lanes that hold a block (the first is
/// a multiple of 8) call it together.
DEVICE void storeQ8(uint8_t* row, uint cols, uint col, float4 v)
{
    float top = neighbourMax<8>(largestOf(abs(v)));
    int4 q = int4(round(v * inverseScale(top)));
    const int sum = neighbourSum<8>(q.x + q.y + q.z + q.w);
    ((uint*)row)[col / 4] = packSigned(q);
    if (col % 32 == 0)
    {
        float d = top / 127.0f;
        float2* scales = (float2*)(row + (cols + 15) / 16 * 16);
        storeAligned<8>(scales + col / 32, float2(d, d * float(sum)));
    }
}
