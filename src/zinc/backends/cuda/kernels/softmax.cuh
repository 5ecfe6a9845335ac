// Online softmax over scores that arrive in parts. Scores are exponents of 2.

#pragma once

#include "prelude.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
// Score of a masked key. It is finite, so that differences of scores are never NaN.
constexpr float MASKED = -1e30f;

/// Largest score so far, and the sum of 2^(score - maximum) over all scores so far.
struct OnlineSoftmax
{
    float maximum, sum;
};

DEVICE OnlineSoftmax emptySoftmax() { return { MASKED, 0.0f }; }

/// Merges `b` into `a`. Returns the factors of the weighted sums: x for those of a, y for those of b.
DEVICE float2 mergeInto(OnlineSoftmax& a, OnlineSoftmax b)
{
    float maximum = max(a.maximum, b.maximum);
    float2 correction = float2(exp2(a.maximum - maximum), exp2(b.maximum - maximum));
    a.sum = a.sum * correction.x + b.sum * correction.y;
    a.maximum = maximum;
    return correction;
}

/// Applies the softcap, if there is one, and converts a score to an exponent of 2.
DEVICE float scaledScore(float score, float cap)
{
#if SOFTCAP
    score = cap * tanh(clamp(score / cap, -15.0f, 15.0f));
#endif
    return score * LOG2_E;
}

/// Stores four columns of an output row. With Q8, the eight lanes of a block call it together.
DEVICE void storeOutput(uint8_t* row, uint cols, uint col, float4 v)
{
#if Q8
    storeQ8(row, cols, col, v);
#else
    storeFour(row, cols, col, v);
#endif
}
