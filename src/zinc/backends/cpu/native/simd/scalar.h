// Sixteen lanes in plain arrays: runs on any machine and is the reference for the other levels.
#pragma once

#include <array>

#include "../half.h"

namespace zinc::ZINC_LEVEL {

inline constexpr int kVectorRegisters = 1;
inline constexpr int kOffset8 = 0;           // 8-bit weights are stored as s8
inline constexpr int kDotOffset = 0;         // dot4 takes u8 unchanged
inline constexpr bool kDotsOfBytes = false;  // unsigned weights may have all eight bits

struct I32x16 {
    int32_t v[16];
    static I32x16 zero() { return set1(0); }
    static I32x16 set1(int32_t x) {
        return map([&](int) { return x; });
    }
    static I32x16 load(const int32_t* p) {
        return map([&](int i) { return p[i]; });
    }
    void store(int32_t* p) const { std::memcpy(p, v, sizeof v); }
    void store_i8(int8_t* p) const {
        for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(v[i] < -128 ? -128 : v[i] > 127 ? 127 : v[i]);
    }
    friend I32x16 operator+(I32x16 a, I32x16 b) {
        return map([&](int i) { return a.v[i] + b.v[i]; });
    }
    friend I32x16 operator-(I32x16 a, I32x16 b) {
        return map([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend I32x16 operator*(I32x16 a, I32x16 b) {
        return map([&](int i) { return a.v[i] * b.v[i]; });
    }
    friend I32x16 max(I32x16 a, I32x16 b) {
        return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
    }
    friend int32_t sum(I32x16 a) {
        int32_t s = 0;
        for (int32_t x : a.v) s += x;
        return s;
    }
    friend int32_t hmax(I32x16 a) {
        int32_t m = a.v[0];
        for (int32_t x : a.v) m = m > x ? m : x;
        return m;
    }
    template <class F>
    static I32x16 map(F f) {
        I32x16 r;
        for (int i = 0; i < 16; ++i) r.v[i] = f(i);
        return r;
    }
};

struct F32x16 {
    float v[16];
    static F32x16 zero() { return set1(0.0f); }
    static F32x16 set1(float x) {
        return map([&](int) { return x; });
    }
    static F32x16 load(const float* p) {
        return map([&](int i) { return p[i]; });
    }
    static F32x16 load_f16(const uint16_t* p) {
        return map([&](int i) { return f16_to_f32(p[i]); });
    }
    static F32x16 load_bf16(const uint16_t* p) {
        return map([&](int i) { return bf16_to_f32(p[i]); });
    }
    // Loads unsigned E4M3 floats times 2^-8: their bits are the upper bits of f16, shifted by seven.
    static F32x16 load_e4m3(const uint8_t* p) {
        return map([&](int i) { return f16_to_f32(static_cast<uint16_t>(p[i] << 7)); });
    }
    // Loads sixteen unsigned 4-bit values: the low halves of eight bytes, then the high halves.
    static F32x16 load_u4(const uint8_t* p) {
        return map([&](int i) { return static_cast<float>(p[i % 8] >> (i / 8 * 4) & 15); });
    }
    static F32x16 load_i8(const int8_t* p) {
        return map([&](int i) { return static_cast<float>(p[i]); });
    }
    static F32x16 load_n(const float* p, int n) {
        return map([&](int i) { return i < n ? p[i] : 0.0f; });
    }
    void store(float* p) const { std::memcpy(p, v, sizeof v); }
    void store_n(float* p, int n) const {
        for (int i = 0; i < n; ++i) p[i] = v[i];
    }
    void store_f16(uint16_t* p) const {
        for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(v[i]);
    }
    friend F32x16 operator+(F32x16 a, F32x16 b) {
        return map([&](int i) { return a.v[i] + b.v[i]; });
    }
    friend F32x16 operator-(F32x16 a, F32x16 b) {
        return map([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend F32x16 operator*(F32x16 a, F32x16 b) {
        return map([&](int i) { return a.v[i] * b.v[i]; });
    }
    friend F32x16 operator/(F32x16 a, F32x16 b) {
        return map([&](int i) { return a.v[i] / b.v[i]; });
    }
    friend F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
        return map([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
    }
    friend F32x16 max(F32x16 a, F32x16 b) {
        return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
    }
    friend F32x16 min(F32x16 a, F32x16 b) {
        return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
    }
    friend F32x16 abs(F32x16 a) {
        return map([&](int i) { return std::fabs(a.v[i]); });
    }
    friend F32x16 round(F32x16 a) {
        return map([&](int i) { return std::nearbyintf(a.v[i]); });
    }
    friend F32x16 ldexp(F32x16 a, F32x16 n) {
        return map(
            [&](int i) { return n.v[i] == n.v[i] ? std::ldexp(a.v[i], static_cast<int>(n.v[i])) : n.v[i]; });
    }
    friend F32x16 where_lt(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
        return map([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
    }
    friend F32x16 select_lanes(F32x16 a, int first, int last, F32x16 other) {
        return map([&](int i) { return i >= first && i < last ? a.v[i] : other.v[i]; });
    }
    // Adds the upper half to the lower half, then again: the order in which the vector levels reduce.
    friend float sum(F32x16 a) {
        for (int n = 8; n > 0; n /= 2)
            for (int i = 0; i < n; ++i) a.v[i] += a.v[i + n];
        return a.v[0];
    }
    friend float hmax(F32x16 a) {
        for (int n = 8; n > 0; n /= 2)
            for (int i = 0; i < n; ++i) a.v[i] = a.v[i] > a.v[i + n] ? a.v[i] : a.v[i + n];
        return a.v[0];
    }
    friend I32x16 bits(F32x16 a) {
        return I32x16::map([&](int i) { return std::bit_cast<int32_t>(a.v[i]); });
    }
    friend I32x16 to_i32(F32x16 a) {  // out of range and NaN give INT32_MIN, as on x86
        return I32x16::map([&](int i) {
            return std::fabs(a.v[i]) < 0x1p31f ? static_cast<int32_t>(std::nearbyintf(a.v[i])) : INT32_MIN;
        });
    }
    template <class F>
    static F32x16 map(F f) {
        F32x16 r;
        for (int i = 0; i < 16; ++i) r.v[i] = f(i);
        return r;
    }
};

inline F32x16 to_f32(I32x16 a) {
    return F32x16::map([&](int i) { return static_cast<float>(a.v[i]); });
}
template <int N>
I32x16 shl(I32x16 a) {
    return I32x16::map([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << N); });
}

struct U8x64 {
    uint8_t v[64];
    static U8x64 load(const void* p) {
        U8x64 r;
        std::memcpy(r.v, p, 64);
        return r;
    }
    static U8x64 set1(uint8_t x) {
        return map([&](int) { return x; });
    }
    static U8x64 repeat(const void* sixteen) {
        return map([&](int i) { return static_cast<const uint8_t*>(sixteen)[i % 16]; });
    }
    void store(void* p) const { std::memcpy(p, v, 64); }
    friend U8x64 operator&(U8x64 a, U8x64 b) {
        return map([&](int i) { return a.v[i] & b.v[i]; });
    }
    friend U8x64 operator|(U8x64 a, U8x64 b) {
        return map([&](int i) { return a.v[i] | b.v[i]; });
    }
    template <class F>
    static U8x64 map(F f) {
        U8x64 r;
        for (int i = 0; i < 64; ++i) r.v[i] = static_cast<uint8_t>(f(i));
        return r;
    }
};
template <int N>
U8x64 shr(U8x64 a) {
    return U8x64::map([&](int i) { return a.v[i] >> N; });
}
template <int N>
U8x64 shl(U8x64 a) {
    return U8x64::map([&](int i) { return a.v[i] << N; });
}

inline U8x64 lookup(U8x64 table, U8x64 index) {
    return U8x64::map([&](int i) { return table.v[i / 16 * 16 + index.v[i] % 16]; });
}

struct I16x32 {
    int16_t v[32];
    static I16x32 set1(int16_t x) {
        return map([&](int) { return x; });
    }
    static I16x32 load(const void* p) {
        I16x32 r;
        std::memcpy(r.v, p, 64);
        return r;
    }
    static I16x32 widen(const int8_t* p) {
        return map([&](int i) { return p[i]; });
    }
    void store(void* p) const { std::memcpy(p, v, 64); }
    I32x16 even() const {
        return I32x16::map([&](int i) { return v[2 * i]; });
    }
    I32x16 odd() const {
        return I32x16::map([&](int i) { return v[2 * i + 1]; });
    }
    friend I16x32 operator&(I16x32 a, int16_t mask) {
        return map([&](int i) { return a.v[i] & mask; });
    }
    friend I16x32 operator*(I16x32 a, int16_t x) {
        return map([&](int i) { return a.v[i] * x; });
    }
    friend I16x32 operator-(I16x32 a, I16x32 b) {
        return map([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend I16x32 operator-(I16x32 a) { return set1(0) - a; }
    friend I16x32 abs(I16x32 a) {
        return map([&](int i) { return a.v[i] < 0 ? -a.v[i] : a.v[i]; });
    }
    template <class F>
    static I16x32 map(F f) {
        I16x32 r;
        for (int i = 0; i < 32; ++i) r.v[i] = static_cast<int16_t>(f(i));
        return r;
    }
};
template <int N>
I16x32 shr(I16x32 a) {
    return I16x32::map([&](int i) { return static_cast<uint16_t>(a.v[i]) >> N; });
}
template <int N>
I16x32 shl(I16x32 a) {
    return I16x32::map([&](int i) { return static_cast<uint16_t>(a.v[i]) << N; });
}

inline I32x16 dot2(I32x16 acc, I16x32 a, int32_t pair) {
    const auto p = std::bit_cast<std::array<int16_t, 2>>(pair);
    return I32x16::map([&](int i) { return acc.v[i] + a.v[2 * i] * p[0] + a.v[2 * i + 1] * p[1]; });
}

inline I32x16 dot4(I32x16 acc, U8x64 w, int32_t four) {
    const auto x = std::bit_cast<std::array<int8_t, 4>>(four);
    return I32x16::map([&](int i) {
        const uint8_t* u = w.v + 4 * i;
        return acc.v[i] + u[0] * x[0] + u[1] * x[1] + u[2] * x[2] + u[3] * x[3];
    });
}

template <int kBits>
struct Dot4 {
    static constexpr int kRun = 64;
    I32x16 acc = I32x16::zero();
    void add(U8x64 w, int32_t four) {
        if constexpr (kBits < 8) {
            acc = dot4(acc, w, four);
        } else {
            const auto x = std::bit_cast<std::array<int8_t, 4>>(four);
            acc = I32x16::map([&](int i) {
                int32_t s = acc.v[i];
                for (int j = 0; j < 4; ++j) s += static_cast<int8_t>(w.v[4 * i + j]) * x[j];
                return s;
            });
        }
    }
    I32x16 total() const { return acc; }
};

inline constexpr int kTileBlock = 1, kTokenBlock = 2;
inline constexpr int kFewRows = 1;  // most rows in a product that unpacks weights in registers

}  // namespace zinc::ZINC_LEVEL
