// exp2, exp, tanh, sigmoid and the gated activation functions on sixteen lanes, accurate to about one ulp.
//
// exp2(x) = 2^n * p(x - n) with n = round(x): the reduction is exact and p is one polynomial. exp reduces
// with x = n * ln 2 + f, where ln 2 is split in two parts. The polynomials are minimax fits of the relative
// error with a constant term of exactly 1, so exp(0) = 1 and a softmax whose maximum did not change is
// rescaled by exactly 1. -inf gives 0, large arguments give inf, NaN stays NaN.
#pragma once

#include "../simd.h"

namespace zinc::ZINC_LEVEL {

inline F32x16 exp2(F32x16 x) {
    x = min(F32x16::set1(130.0f), max(F32x16::set1(-152.0f), x));
    const F32x16 n = round(x);
    const F32x16 f = x - n;
    F32x16 p = F32x16::set1(0x1.41fbbcp-13f);
    p = fma(p, f, F32x16::set1(0x1.5f3e52p-10f));
    p = fma(p, f, F32x16::set1(0x1.3b2d4cp-7f));
    p = fma(p, f, F32x16::set1(0x1.c6aee8p-5f));
    p = fma(p, f, F32x16::set1(0x1.ebfbdcp-3f));
    p = fma(p, f, F32x16::set1(0x1.62e430p-1f));
    p = fma(p, f, F32x16::set1(1.0f));
    return ldexp(p, n);
}

inline F32x16 exp(F32x16 x) {
    x = min(F32x16::set1(90.0f), max(F32x16::set1(-105.0f), x));
    const F32x16 n = round(x * F32x16::set1(0x1.715476p+0f));
    F32x16 f = fma(n, F32x16::set1(-0x1.62e400p-1f), x);  // high part of ln 2: its product with n is exact
    f = fma(n, F32x16::set1(-0x1.7f7d1cp-20f), f);        // low part of ln 2
    F32x16 q = F32x16::set1(0.0013814613f);
    q = fma(q, f, F32x16::set1(0.00836871f));
    q = fma(q, f, F32x16::set1(0.04166839f));
    q = fma(q, f, F32x16::set1(0.16666521f));
    q = fma(q, f, F32x16::set1(0.49999994f));
    return ldexp(fma(f * f, q, f) + F32x16::set1(1.0f), n);
}

inline F32x16 sigmoid(F32x16 x) {
    const F32x16 one = F32x16::set1(1.0f);
    return one / (one + exp(F32x16::zero() - x));
}

inline F32x16 tanh(F32x16 x) {
    // Near zero 1 - 2 / (e^2x + 1) would cancel, so x + x^3 P(x^2) is used there.
    const F32x16 z = x * x;
    F32x16 p = F32x16::set1(-0.005704987f);
    p = fma(p, z, F32x16::set1(0.020639086f));
    p = fma(p, z, F32x16::set1(-0.053739715f));
    p = fma(p, z, F32x16::set1(0.13331442f));
    p = fma(p, z, F32x16::set1(-0.3333328f));
    const F32x16 small = fma(x * z, p, x);
    const F32x16 one = F32x16::set1(1.0f), two = F32x16::set1(2.0f);
    const F32x16 a = abs(x);
    const F32x16 magnitude = one - two / (exp(a + a) + one);
    const F32x16 large = where_lt(x, F32x16::zero(), F32x16::zero() - magnitude, magnitude);
    return where_lt(F32x16::set1(0.625f), a, large, small);
}

inline F32x16 silu(F32x16 x) { return x / (F32x16::set1(1.0f) + exp(F32x16::zero() - x)); }

// The tanh form: x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), written as x * sigmoid(2u).
inline F32x16 gelu(F32x16 x) {
    const F32x16 u = x * fma(x * x, F32x16::set1(0.044715f * 1.5957691216f), F32x16::set1(1.5957691216f));
    return x / (F32x16::set1(1.0f) + exp(F32x16::zero() - u));
}

// The exact form x * Phi(x) = max(x, 0) - |x| Phi(-|x|), where Phi(-|x|) = t P(t) e^(-x^2 / 2). With z = |x|
// / sqrt(2), t = 1 / (1 + 0.33 z). P is a minimax fit of the relative error.
inline F32x16 gelu_erf(F32x16 x) {
    const F32x16 one = F32x16::set1(1.0f), a = min(abs(x), F32x16::set1(1e30f));  // infinity would give NaN
    const F32x16 t = one / fma(a, F32x16::set1(0.33f * 0.70710678f), one);
    F32x16 p = F32x16::set1(-0.0679646118f);
    p = fma(p, t, F32x16::set1(0.2313450589f));
    p = fma(p, t, F32x16::set1(-0.1777212116f));
    p = fma(p, t, F32x16::set1(0.2062725327f));
    p = fma(p, t, F32x16::set1(0.0225043061f));
    p = fma(p, t, F32x16::set1(0.1009622437f));
    p = fma(p, t, F32x16::set1(0.091418562f));
    p = fma(p, t, F32x16::set1(0.0931830592f));
    const F32x16 e = exp2(x * (x * F32x16::set1(-0.72134752f)));  // -log2(e) / 2
    return fma(F32x16::zero() - a * t, p * e, max(x, F32x16::zero()));
}

enum class ActivationFn : int {
    silu = 0,
    gelu = 1,
    relu_squared = 2,
    clamped_swiglu = 3,
    gelu_erf = 4,
    identity = 5,
    limited_silu = 6,
    sigmoid = 7
};
constexpr int kLastActivation = 7;

struct Glu {
    ActivationFn fn = ActivationFn::silu;
    float alpha = 1.702f, limit = 7.0f;  // of clamped_swiglu, and limit of limited_silu
};

// fn(gate) * up. clamped_swiglu is g * sigmoid(alpha g) * (u + 1) with g = min(gate, limit) and u = up
// clamped to [-limit, limit]; limited_silu is min(silu(gate), limit) * u.
inline F32x16 glu(const Glu& p, F32x16 gate, F32x16 up) {
    switch (p.fn) {
        case ActivationFn::gelu: return gelu(gate) * up;
        case ActivationFn::gelu_erf: return gelu_erf(gate) * up;
        case ActivationFn::identity: return gate * up;
        case ActivationFn::relu_squared: {
            const F32x16 r = max(F32x16::zero(), gate);
            return r * r * up;
        }
        case ActivationFn::clamped_swiglu: {
            const F32x16 limit = F32x16::set1(p.limit), one = F32x16::set1(1.0f);
            const F32x16 g = min(limit, gate);
            const F32x16 u = min(limit, max(F32x16::zero() - limit, up));
            return g / (one + exp(F32x16::set1(-p.alpha) * g)) * (u + one);
        }
        case ActivationFn::limited_silu: {
            const F32x16 limit = F32x16::set1(p.limit);
            return min(limit, silu(gate)) * min(limit, max(F32x16::zero() - limit, up));
        }
        case ActivationFn::sigmoid: return sigmoid(gate) * up;
        default: return silu(gate) * up;
    }
}

}  // namespace zinc::ZINC_LEVEL
