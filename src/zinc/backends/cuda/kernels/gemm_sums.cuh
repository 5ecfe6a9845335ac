// The tile of a GEMM without cooperative matrices. Each thread computes 4 weight rows by SUMS rows of
// x. With rows of 8-bit blocks, a step of the loop is one unit; with float32 rows, it is several units.

#include "product.cuh"

#define DOWN (ROWS / 4) // threads along the weight rows
#define THREADS (DOWN * (BATCH / SUMS))
#define PARTS 1
#define FOURS SUMS

struct Sums
{
    float values[4][SUMS];
};

DEVICE Sums zeroSums()
{
    Sums sums;
    UNROLL for (uint m = 0; m < 4; m++)
        UNROLL for (uint n = 0; n < SUMS; n++) sums.values[m][n] = 0;
    return sums;
}

#if ROWS_Q8

#define UNITS 1
SHARED uint weightWords[ROWS][9]; // a unit has 8 words; a pitch of 9 puts rows in different banks
SHARED float4 weightScales[ROWS];
SHARED uint columnWords[BATCH][9];
SHARED float2 columnScales[BATCH];

DEVICE void storeWeights(uint t, Weights u)
{
    UNROLL for (uint i = 0; i < 8; i++) weightWords[t][i] = u.q[i];
    weightScales[t] = float4(u.d, u.m);
}

DEVICE void storeZeroWeights(uint t) { weightScales[t] = 0; }

DEVICE void storeActivations(uint t, Activations x)
{
    UNROLL for (uint i = 0; i < 4; i++)
    {
        columnWords[t][i] = x.a[i];
        columnWords[t][i + 4] = x.b[i];
    }
    columnScales[t] = float2(x.d, x.s);
}

DEVICE void multiply(Sums& sums, uint thread)
{
    uint row = thread % DOWN * 4, batch = thread / DOWN * SUMS;
    Unit w[4];
    UNROLL for (uint m = 0; m < 4; m++)
    {
        UNROLL for (uint i = 0; i < 8; i++) w[m].q[i] = weightWords[row + m][i];
        float4 scales = weightScales[row + m];
        w[m].d = float2(scales.x, scales.y);
        w[m].m = float2(scales.z, scales.w);
    }
    UNROLL for (uint n = 0; n < SUMS; n++)
    {
        Activations x;
        UNROLL for (uint i = 0; i < 4; i++)
        {
            x.a[i] = columnWords[batch + n][i];
            x.b[i] = columnWords[batch + n][i + 4];
        }
        x.d = columnScales[batch + n].x;
        x.s = columnScales[batch + n].y;
        UNROLL for (uint m = 0; m < 4; m++) sums.values[m][n] += dotUnits(w[m], x);
    }
}

#else

#define UNITS (32 / UNIT)
SHARED float weightValues[ROWS][33];
SHARED float columnValues[BATCH][33];

DEVICE void storeWeights(uint t, Weights v)
{
    UNROLL for (uint i = 0; i < UNIT; i++)
        weightValues[t / UNITS][t % UNITS * UNIT + i] = v.v[i];
}

DEVICE void storeZeroWeights(uint t)
{
    UNROLL for (uint i = 0; i < UNIT; i++)
        weightValues[t / UNITS][t % UNITS * UNIT + i] = 0;
}

DEVICE void storeActivations(uint t, Activations x)
{
    UNROLL for (uint i = 0; i < UNIT; i++)
        columnValues[t / UNITS][t % UNITS * UNIT + i] = x.v[i];
}

DEVICE void multiply(Sums& sums, uint thread)
{
    uint row = thread % DOWN * 4, batch = thread / DOWN * SUMS;
    for (uint k = 0; k < 32; k++)
    {
        float w[4];
        UNROLL for (uint m = 0; m < 4; m++) w[m] = weightValues[row + m][k];
        UNROLL for (uint n = 0; n < SUMS; n++)
        {
            float x = columnValues[batch + n][k];
            UNROLL for (uint m = 0; m < 4; m++) sums.values[m][n] += w[m] * x;
        }
    }
}

#endif

DEVICE void stageSums(Sums sums, uint part, uint thread) {}

DEVICE uint2 sumsPosition(uint part, uint k, uint thread)
{
    return uint2(thread % DOWN * 4, thread / DOWN * SUMS + k);
}

DEVICE float4 loadSums(Sums sums, uint k, uint thread)
{
    return float4(sums.values[0][k], sums.values[1][k], sums.values[2][k], sums.values[3][k]);
}
