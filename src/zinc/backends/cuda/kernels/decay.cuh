// The decay of the delta rule.
//   FLOOR  decays have a lower bound

#pragma once

#include "activation.cuh"
#include "prelude.cuh"

DEVICE float softplus(float x)
{
    float e = exp(-abs(x));
    return max(x, 0.0f) + (e < 1e-4f ? e : log(1.0f + e));
}

/// Returns the factor of the state, from the decay of a head and its biased input.
DEVICE float decayOf(float decay, float x) { return exp(decay * softplus(x)); }

/// Returns the factor of the state as `decayOf` does; with FLOOR, its logarithm is at least `floor`.
DEVICE float boundedDecayOf(float decay, float x, float floor)
{
#if defined(FLOOR) && FLOOR
    return exp(floor * sigmoid(decay * x));
#else
    return decayOf(decay, x);
#endif
}
