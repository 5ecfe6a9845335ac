// Activation functions of feed-forward layers.

#pragma once

#include "arguments/activation_fn.h"
#include "prelude.cuh"

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

/// The exact GELU, x * Phi(x), where Phi(-|x|) = t P(t) e^(-z^2) with z = |x| / sqrt(2). P is a minimax
/// fit of the relative error.
DEVICE float gelu(float x)
{
    float z = abs(x) * 0.70710678f, t = 1.0f / (1.0f + 0.33f * z);
    float p = 0.0931830592f + t * (0.091418562f + t * (0.1009622437f + t * (0.0225043061f
        + t * (0.2062725327f + t * (-0.1777212116f + t * (0.2313450589f + t * -0.0679646118f))))));
    float tail = p * t * exp(-z * z);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

DEVICE float activate(uint act, float g, float u, float alpha, float limit)
{
    switch (act)
    {
    case SILU: return g * sigmoid(g) * u;
    case GELU: // tanh of larger numbers is inf / inf on some devices
    {
        float t = clamp(0.7978845608028654f * (g + 0.044715f * g * g * g), -15.0f, 15.0f);
        return 0.5f * g * (1.0f + tanh(t)) * u;
    }
    case GELU_ERF: return gelu(g) * u;
    case IDENTITY: return g * u;
    case RELU_SQUARED:
        g = max(g, 0.0f);
        return g * g * u;
    case SIGMOID: return sigmoid(g) * u;
    case LIMITED_SILU: return min(g * sigmoid(g), limit) * clamp(u, -limit, limit);
    default: // CLAMPED_SWIGLU
        g = min(g, limit);
        return g * sigmoid(alpha * g) * (clamp(u, -limit, limit) + 1.0f);
    }
}
