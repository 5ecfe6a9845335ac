// Scalar conversions of float16 and bfloat16, for code outside the SIMD levels (packing, debug reads).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace zinc {

inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    const uint32_t magnitude = h & 0x7fff;
    // Zero and subnormals are multiples of 2^-24.
    const uint32_t bits = magnitude < 0x0400
                              ? std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f)
                              : (magnitude << 13) + (magnitude >= 0x7c00 ? 0x70000000u : 0x38000000u);
    return std::bit_cast<float>(bits | sign);
}

// Rounds to nearest even and saturates: a value past 65504 must not make a whole row of attention NaN.
inline uint16_t f32_to_f16(float x) {
    uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
    if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7bff);
    if (bits < 0x38800000) {  // below 2^-14: after adding 1/2 the low bits hold the multiple of 2^-24
        bits = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5f);
        return static_cast<uint16_t>(sign | (bits - 0x3f000000));
    }
    bits += 0x0fff + (bits >> 13 & 1);
    return static_cast<uint16_t>(sign | (bits - 0x38000000) >> 13);
}

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

// Rounds to nearest even. NaN stays NaN and subnormals are kept.
inline uint16_t f32_to_bf16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace zinc
