// Sums and maxima over a workgroup of THREADS threads, always in the same order.

#pragma once

#include "prelude.cuh"

#define WAVES_IN_GROUP ((THREADS + SUBGROUP - 1) / SUBGROUP)

#if WAVES_IN_GROUP > 1
SHARED float wavePartials[WAVES_IN_GROUP], waveMaxima[WAVES_IN_GROUP];
#endif

/// Returns the sum of `x` over all threads. All threads call it together.
DEVICE float sumOfGroup(float x, uint thread)
{
    float sum = warpSum(x);
#if WAVES_IN_GROUP > 1
    if (thread % SUBGROUP == 0) wavePartials[thread / SUBGROUP] = sum;
    __syncthreads();
    sum = 0;
    UNROLL for (uint i = 0; i < WAVES_IN_GROUP; i++) sum += wavePartials[i];
#endif
    return sum;
}

/// Returns the sum of `x` and the largest `y` over all threads. All threads call it together.
DEVICE float2 sumAndMaxOfGroup(float x, float y, uint thread)
{
    float top = warpMax(y);
#if WAVES_IN_GROUP > 1
    if (thread % SUBGROUP == 0) waveMaxima[thread / SUBGROUP] = top; // visible after the barrier of the sum
    const float sum = sumOfGroup(x, thread);
    UNROLL for (uint i = 0; i < WAVES_IN_GROUP; i++) top = max(top, waveMaxima[i]);
    return float2(sum, top);
#else
    return float2(sumOfGroup(x, thread), top);
#endif
}
