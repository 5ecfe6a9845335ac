// Activation functions of gated products.

#pragma once

#include "arguments/activation_fn.h"
#include "prelude.cuh"

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

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
    case RELU_SQUARED:
        g = max(g, 0.0f);
        return g * g * u;
    default: // CLAMPED_SWIGLU
        g = min(g, limit);
        return g * sigmoid(alpha * g) * (clamp(u, -limit, limit) + 1.0f);
    }
}
