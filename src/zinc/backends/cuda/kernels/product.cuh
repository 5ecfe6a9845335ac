// Dot products of a unit of weights with the activations of the same columns.
//   ROWS_Q8  activations are 8-bit blocks (q8.cuh) instead of float32

#pragma once

#include "formats.cuh"

#if ROWS_Q8

/// Returns sum + the dot product of the four signed bytes of a and of b.
DEVICE int dot4(uint a, uint b, int sum) { return __dp4a(int(a), int(b), sum); }

/// 32 numbers: signed bytes, their scale, and the sum of the bytes times the scale.
struct Activations
{
    uint4 a, b;
    float d, s;
};

/// Loads the activations of a unit from a row of `cols` columns.
DEVICE Activations loadActivations(uint8_t* row, uint unit, uint cols)
{
    Activations x;
    x.a = loadAligned<16>((uint4*)row + 2 * unit);
    x.b = loadAligned<16>((uint4*)row + 2 * unit + 1);
    float2 ds = loadAligned<8>((float2*)(row + cols) + unit);
    x.d = ds.x;
    x.s = ds.y;
    return x;
}

DEVICE float dotUnits(Unit w, Activations x)
{
    int first = 0, second = 0;
    UNROLL for (int i = 0; i < 4; i++)
    {
        first = dot4(w.q[i], x.a[i], first);
        second = dot4(w.q[i + 4], x.b[i], second);
    }
#if HALVES
    float sum = x.d * (w.d.x * float(first) + w.d.y * float(second));
#else
    float sum = x.d * w.d.x * float(first + second);
#endif
#if MINIMUMS && HALVES
    int ones = 0;
    UNROLL for (int i = 0; i < 4; i++) ones = dot4(0x01010101u, x.a[i], ones);
    float s = x.d * float(ones);
    sum -= w.m.x * s + w.m.y * (x.s - s);
#elif MINIMUMS
    sum -= w.m.x * x.s;
#endif
    return sum;
}

DEVICE Unit loadWeights(Matrix w, uint unit) { return decode(w, unit); }

#else

struct Activations
{
    float v[UNIT];
};

struct Floats
{
    float v[UNIT];
};

/// Loads the activations of a unit from a row of `cols` columns, zeros past the last. With
/// VECTORS rows are whole units and aligned to 16 bytes.
DEVICE Activations loadActivations(uint8_t* row, uint unit, uint cols)
{
    Activations x;
#if VECTORS
    UNROLL for (uint i = 0; i < UNIT / 4; i++)
    {
        float4 four = loadAligned<16>((float4*)row + (unit * (UNIT / 4) + i));
        UNROLL for (uint j = 0; j < 4; j++) x.v[4 * i + j] = four[j];
    }
#else
    UNROLL for (uint i = 0; i < UNIT; i++)
    {
        uint col = unit * UNIT + i;
        x.v[i] = col < cols ? ((float*)row)[col] : 0.0f;
    }
#endif
    return x;
}

DEVICE float dotUnits(Floats w, Activations x)
{
    float sum = 0;
    UNROLL for (int i = 0; i < UNIT; i++) sum += w.v[i] * x.v[i];
    return sum;
}

DEVICE Floats loadWeights(Matrix w, uint unit)
{
    Floats r;
    decode(w, unit, r.v);
    return r;
}

#endif

#if ROWS_Q8
typedef Unit Weights;
#else
typedef Floats Weights;
#endif

// Weights whose loads are in flight.
#if ROWS_Q8 && PACKED_UNITS
typedef PackedUnit PendingWeights;
DEVICE PendingWeights prefetchWeights(Matrix w, uint unit) { return loadUnit(w, unit); }
DEVICE Weights finishWeights(const PendingWeights& p, uint unit) { return decodeUnit(p, unit); }
#else
typedef Weights PendingWeights;
DEVICE PendingWeights prefetchWeights(Matrix w, uint unit) { return loadWeights(w, unit); }
DEVICE Weights finishWeights(const PendingWeights& p, uint unit) { return p; }
#endif

/// Keeps the compiler from moving loads of weights after the products of earlier weights, as it would
/// to save registers. Call it between the loads of weights and the loads of their activations.
DEVICE void issueWeights()
{
#ifndef ZINC_EMULATED
    __syncwarp(__activemask());
#endif
}
