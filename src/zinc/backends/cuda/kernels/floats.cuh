// Loads and stores of four neighbouring columns of a float32 row.
//   VECTORS  rows are aligned to 16 bytes and have a multiple of four columns. Otherwise columns
//            are accessed one by one, and those past the last are zeros.

#pragma once

#include "prelude.cuh"

DEVICE float4 loadFour(uint8_t* row, uint cols, uint col)
{
#if VECTORS
    return loadAligned<16>((float4*)(row + 4 * col));
#else
    float4 v;
    UNROLL for (uint i = 0; i < 4; i++)
        v[i] = col + i < cols ? ((float*)row)[col + i] : 0.0f;
    return v;
#endif
}

DEVICE void storeFour(uint8_t* row, uint cols, uint col, float4 v)
{
#if VECTORS
    storeAligned<16>((float4*)(row + 4 * col), v);
#else
    UNROLL for (uint i = 0; i < 4; i++)
        if (col + i < cols) ((float*)row)[col + i] = v[i];
#endif
}

DEVICE uint8_t* rowAt(uint8_t* base, uint row, uint stride) { return base + uint64_t(row) * stride; }
