// Sixteen lanes in four q registers: AArch64 with the dot product extension (Armv8.2 and later, every Apple
// chip).
#pragma once

#include <arm_neon.h>

namespace zinc::ZINC_LEVEL {

inline constexpr int kVectorRegisters = 8;   // sixteen-lane values that fit in registers
inline constexpr int kOffset8 = 0;           // 8-bit weights are stored as s8
inline constexpr int kDotOffset = 128;       // dot4 takes u8 as s8 + kDotOffset
inline constexpr bool kDotsOfBytes = false;  // unsigned weights may have all eight bits

// Calls f for each of the four registers.
template <class T, class F>
[[gnu::always_inline]] inline T quarters(F&& f) {
    return {{f(0), f(1), f(2), f(3)}};
}

struct I32x16 {
    int32x4_t v[4];
    static I32x16 zero() { return set1(0); }
    static I32x16 set1(int32_t x) {
        return quarters<I32x16>([&](int) { return vdupq_n_s32(x); });
    }
    static I32x16 load(const int32_t* p) {
        return quarters<I32x16>([&](int i) { return vld1q_s32(p + 4 * i); });
    }
    void store(int32_t* p) const {
        for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, v[i]);
    }
    // Stores the lanes as int8, saturated.
    void store_i8(int8_t* p) const {
        const int16x8_t low = vcombine_s16(vqmovn_s32(v[0]), vqmovn_s32(v[1]));
        const int16x8_t high = vcombine_s16(vqmovn_s32(v[2]), vqmovn_s32(v[3]));
        vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
    }
    friend I32x16 operator+(I32x16 a, I32x16 b) {
        return quarters<I32x16>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
    }
    friend I32x16 operator-(I32x16 a, I32x16 b) {
        return quarters<I32x16>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
    }
    friend I32x16 operator*(I32x16 a, I32x16 b) {
        return quarters<I32x16>([&](int i) { return vmulq_s32(a.v[i], b.v[i]); });
    }
    friend I32x16 max(I32x16 a, I32x16 b) {
        return quarters<I32x16>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
    }
    friend int32_t sum(I32x16 a) {
        return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
    }
    friend int32_t hmax(I32x16 a) {
        return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
    }
};

struct F32x16 {
    float32x4_t v[4];
    static F32x16 zero() { return set1(0.0f); }
    static F32x16 set1(float x) {
        return quarters<F32x16>([&](int) { return vdupq_n_f32(x); });
    }
    static F32x16 load(const float* p) {
        return quarters<F32x16>([&](int i) { return vld1q_f32(p + 4 * i); });
    }
    static F32x16 load_f16(const uint16_t* p) {
        return quarters<F32x16>(
            [&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
    }
    static F32x16 load_bf16(const uint16_t* p) {
        return quarters<F32x16>(
            [&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
    }
    // Loads unsigned E4M3 floats times 2^-8: their bits are the upper bits of f16, shifted by seven.
    static F32x16 load_e4m3(const uint8_t* p) {
        const uint8x16_t codes = vld1q_u8(p);
        const uint16x8_t low = vshll_n_u8(vget_low_u8(codes), 7), high = vshll_n_u8(vget_high_u8(codes), 7);
        const uint16x4_t four[4] = {vget_low_u16(low), vget_high_u16(low), vget_low_u16(high),
                                    vget_high_u16(high)};
        return quarters<F32x16>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(four[i])); });
    }
    // Loads sixteen unsigned 4-bit values: the low halves of eight bytes, then the high halves.
    static F32x16 load_u4(const uint8_t* p) {
        const uint8x8_t two = vld1_u8(p);
        const uint16x8_t low = vmovl_u8(vand_u8(two, vdup_n_u8(15))), high = vmovl_u8(vshr_n_u8(two, 4));
        return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
                 vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                 vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))}};
    }
    static F32x16 load_i8(const int8_t* p) {
        const int8x16_t bytes = vld1q_s8(p);
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
        return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
    }
    // Loads the first n lanes, n in [0, 16]; the others are zero.
    static F32x16 load_n(const float* p, int n) {
        if (n == 16) return load(p);
        float lanes[16] = {};
        std::memcpy(lanes, p, static_cast<size_t>(n) * 4);
        return load(lanes);
    }
    void store(float* p) const {
        for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v[i]);
    }
    void store_n(float* p, int n) const {
        if (n == 16) return store(p);
        float lanes[16];
        store(lanes);
        std::memcpy(p, lanes, static_cast<size_t>(n) * 4);
    }
    void store_f16(uint16_t* p) const {
        for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v[i])));
    }
    friend F32x16 operator+(F32x16 a, F32x16 b) {
        return quarters<F32x16>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
    }
    friend F32x16 operator-(F32x16 a, F32x16 b) {
        return quarters<F32x16>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
    }
    friend F32x16 operator*(F32x16 a, F32x16 b) {
        return quarters<F32x16>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
    }
    friend F32x16 operator/(F32x16 a, F32x16 b) {
        return quarters<F32x16>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
    }
    friend F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
        return quarters<F32x16>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
    }
    // a > b ? a : b and a < b ? a : b, so b when either is NaN.
    friend F32x16 max(F32x16 a, F32x16 b) {
        return quarters<F32x16>([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
    }
    friend F32x16 min(F32x16 a, F32x16 b) {
        return quarters<F32x16>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
    }
    friend F32x16 abs(F32x16 a) {
        return quarters<F32x16>([&](int i) { return vabsq_f32(a.v[i]); });
    }
    // Rounds to the nearest integer, ties to even.
    friend F32x16 round(F32x16 a) {
        return quarters<F32x16>([&](int i) { return vrndnq_f32(a.v[i]); });
    }
    // Returns a * 2^n for integral n, including subnormal and infinite results. Multiplies by two powers, so
    // that both are normal.
    friend F32x16 ldexp(F32x16 a, F32x16 n) {
        return quarters<F32x16>([&](int i) {
            const float32x4_t power = vmaxq_f32(vdupq_n_f32(-250), vminq_f32(vdupq_n_f32(250), n.v[i]));
            const int32x4_t whole = vcvtnq_s32_f32(power);
            const int32x4_t half = vshrq_n_s32(whole, 1), rest = vsubq_s32(whole, half);
            auto power_of_two = [](int32x4_t e) {
                return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23));
            };
            return vmulq_f32(vmulq_f32(a.v[i], power_of_two(half)), power_of_two(rest));
        });
    }
    friend F32x16 where_lt(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
        return quarters<F32x16>(
            [&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]); });
    }
    // Returns lanes [first, last) of a and the other lanes of `other`.
    friend F32x16 select_lanes(F32x16 a, int first, int last, F32x16 other) {
        static constexpr int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        return quarters<F32x16>([&](int i) {
            const int32x4_t lane = vld1q_s32(kLanes + 4 * i);
            const uint32x4_t mask =
                vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(last)));
            return vbslq_f32(mask, a.v[i], other.v[i]);
        });
    }
    friend float sum(F32x16 a) {
        const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
    friend float hmax(F32x16 a) {
        return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
    }
    friend I32x16 bits(F32x16 a) {
        return quarters<I32x16>([&](int i) { return vreinterpretq_s32_f32(a.v[i]); });
    }
    friend I32x16 to_i32(F32x16 a) {  // ties to even
        return quarters<I32x16>([&](int i) { return vcvtnq_s32_f32(a.v[i]); });
    }
};

inline F32x16 to_f32(I32x16 a) {
    return quarters<F32x16>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
template <int N>
I32x16 shl(I32x16 a) {
    return quarters<I32x16>([&](int i) { return vshlq_n_s32(a.v[i], N); });
}

// 64 bytes: sixteen rows x four k.
struct U8x64 {
    uint8x16_t v[4];
    static U8x64 load(const void* p) {
        return quarters<U8x64>([&](int i) { return vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i); });
    }
    static U8x64 repeat(const void* sixteen) {
        return quarters<U8x64>([&](int) { return vld1q_u8(static_cast<const uint8_t*>(sixteen)); });
    }
    static U8x64 set1(uint8_t x) {
        return quarters<U8x64>([&](int) { return vdupq_n_u8(x); });
    }
    void store(void* p) const {
        for (int i = 0; i < 4; ++i) vst1q_u8(static_cast<uint8_t*>(p) + 16 * i, v[i]);
    }
    friend U8x64 operator&(U8x64 a, U8x64 b) {
        return quarters<U8x64>([&](int i) { return vandq_u8(a.v[i], b.v[i]); });
    }
    friend U8x64 operator|(U8x64 a, U8x64 b) {
        return quarters<U8x64>([&](int i) { return vorrq_u8(a.v[i], b.v[i]); });
    }
};
template <int N>
U8x64 shr(U8x64 a) {
    return quarters<U8x64>([&](int i) { return vshrq_n_u8(a.v[i], N); });
}
template <int N>
U8x64 shl(U8x64 a) {
    return quarters<U8x64>([&](int i) { return vshlq_n_u8(a.v[i], N); });
}

// Looks up each index < 16 in a table of sixteen bytes, given repeated.
inline U8x64 lookup(U8x64 table, U8x64 index) {
    return quarters<U8x64>([&](int i) { return vqtbl1q_u8(table.v[i], index.v[i]); });
}

// 32 int16: a pair for each of sixteen rows.
struct I16x32 {
    int16x8_t v[4];
    static I16x32 set1(int16_t x) {
        return quarters<I16x32>([&](int) { return vdupq_n_s16(x); });
    }
    static I16x32 load(const void* p) {
        return quarters<I16x32>([&](int i) { return vld1q_s16(static_cast<const int16_t*>(p) + 8 * i); });
    }
    static I16x32 widen(const int8_t* p) {
        return quarters<I16x32>([&](int i) { return vmovl_s8(vld1_s8(p + 8 * i)); });
    }
    void store(void* p) const {
        for (int i = 0; i < 4; ++i) vst1q_s16(static_cast<int16_t*>(p) + 8 * i, v[i]);
    }
    I32x16 even() const {
        return quarters<I32x16>(
            [&](int i) { return vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_s16(v[i]), 16), 16); });
    }
    I32x16 odd() const {
        return quarters<I32x16>([&](int i) { return vshrq_n_s32(vreinterpretq_s32_s16(v[i]), 16); });
    }
    friend I16x32 operator&(I16x32 a, int16_t mask) {
        return quarters<I16x32>([&](int i) { return vandq_s16(a.v[i], vdupq_n_s16(mask)); });
    }
    friend I16x32 operator*(I16x32 a, int16_t x) {
        return quarters<I16x32>([&](int i) { return vmulq_n_s16(a.v[i], x); });
    }
    friend I16x32 operator-(I16x32 a, I16x32 b) {
        return quarters<I16x32>([&](int i) { return vsubq_s16(a.v[i], b.v[i]); });
    }
    friend I16x32 operator-(I16x32 a) {
        return quarters<I16x32>([&](int i) { return vnegq_s16(a.v[i]); });
    }
    friend I16x32 abs(I16x32 a) {
        return quarters<I16x32>([&](int i) { return vabsq_s16(a.v[i]); });
    }
};
template <int N>
I16x32 shr(I16x32 a) {
    return quarters<I16x32>(
        [&](int i) { return vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s16(a.v[i]), N)); });
}
template <int N>
I16x32 shl(I16x32 a) {
    return quarters<I16x32>([&](int i) { return vshlq_n_s16(a.v[i], N); });
}

// Adds to each lane of acc the dot product of its pair with `pair`, two int16.
inline I32x16 dot2(I32x16 acc, I16x32 a, int32_t pair) {
    const int16x4_t y = vreinterpret_s16_s32(vdup_n_s32(pair));
    return quarters<I32x16>([&](int i) {
        const int32x4_t low = vmull_s16(vget_low_s16(a.v[i]), y), high = vmull_s16(vget_high_s16(a.v[i]), y);
        return vaddq_s32(acc.v[i], vpaddq_s32(low, high));
    });
}

// Adds to each lane of acc the dot product of its four u8 - kDotOffset with `four`, four s8.
inline I32x16 dot4(I32x16 acc, U8x64 w, int32_t four) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four));
    return quarters<I32x16>([&](int i) {
        const int8x16_t s = vreinterpretq_s8_u8(veorq_u8(w.v[i], vdupq_n_u8(kDotOffset)));
        return vdotq_s32(acc.v[i], s, x);
    });
}

// Accumulates dot products of four columns per call, in at most kRun calls before total() is read. Weights
// are read as signed bytes, which suits unsigned weights of fewer than 8 bits and 8-bit weights (kOffset8)
// alike.
struct Dot {
    static constexpr int kRun = 64;
    I32x16 acc = I32x16::zero();
    void add(U8x64 w, int32_t four) {
        const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four));
        acc = quarters<I32x16>([&](int i) { return vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), x); });
    }
    I32x16 total() const { return acc; }
};
template <int kBits>
using Dot4 = Dot;

// Size of the register block of the matrix product: tiles of 16 weight rows x rows of x.
inline constexpr int kTileBlock = 1, kTokenBlock = 4;
inline constexpr int kFewRows = 3;  // most rows in a product that unpacks weights in registers

}  // namespace zinc::ZINC_LEVEL
