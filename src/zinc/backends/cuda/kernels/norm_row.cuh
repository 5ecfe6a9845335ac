// The RMS norm of one float32 row of COLS columns that all threads of a block compute together. A
// thread holds every THREADS-th float4 of the row. The kernel's arguments have the row `x`, the
// weights `norm`, which may be null, and `eps`.

#pragma once

#include "floats.cuh"
#include "reduce.cuh" // needs THREADS

#define ROW_FOURS (COLS / 4)
#define OWN_FOURS ((ROW_FOURS + THREADS - 1) / THREADS) // float4s per thread

/// Loads the thread's weights of the norm, which no kernel of the step writes.
DEVICE void loadNorm(ARGS, float4 (&weights)[OWN_FOURS], uint thread)
{
    UNROLL for (uint i = 0; i < OWN_FOURS; i++)
    {
        const uint four = i * THREADS + thread;
        weights[i] = 1.0f;
        if (four < ROW_FOURS && args.norm != nullptr)
            weights[i] = loadFour(args.norm, COLS, 4 * four);
    }
}

/// Replaces the thread's weights with its columns of the normalised row.
DEVICE void normaliseOwn(ARGS, float4 (&columns)[OWN_FOURS], uint thread)
{
    float4 x[OWN_FOURS];
    float sum = 0;
    UNROLL for (uint i = 0; i < OWN_FOURS; i++)
    {
        const uint four = i * THREADS + thread;
        x[i] = four < ROW_FOURS ? loadFour(args.x, COLS, 4 * four) : float4(0.0f);
        sum += dot(x[i], x[i]);
    }
    const float scale = rsqrt(sumOfGroup(sum, thread) / float(COLS) + args.eps);
    UNROLL for (uint i = 0; i < OWN_FOURS; i++) columns[i] = x[i] * scale * columns[i];
}
