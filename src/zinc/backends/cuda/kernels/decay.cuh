// The decay of the delta rule.

#pragma once

#include "prelude.cuh"

DEVICE float softplus(float x)
{
    float e = exp(-abs(x));
    return max(x, 0.0f) + (e < 1e-4f ? e : log(1.0f + e));
}

/// Returns the factor of the state, from the decay of a head and its biased input.
DEVICE float decayOf(float decay, float x) { return exp(decay * softplus(x)); }
