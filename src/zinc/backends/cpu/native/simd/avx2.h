// Sixteen lanes in two ymm registers: AVX2, FMA and F16C, and in the level avxvnni (Alder Lake and later) the
// dot products of AVX-VNNI.
//
// AVX2 has no dot product of bytes. maddubs multiplies u8 by s8 and adds neighbours into int16, saturating at
// 32767. Therefore Dot sums in int16 for as many groups of four k as the width of the weights allows (each
// group adds at most two products of u and 127 to a lane) and then widens. Full 8-bit weights are stored
// signed and multiplied as |w| * sign(x, w).
#pragma once

#include <immintrin.h>

namespace zinc::ZINC_LEVEL {

inline constexpr int kVectorRegisters = 8;  // sixteen-lane values that fit in registers
inline constexpr int kDotOffset = 0;        // dot4 takes u8 unchanged
#if defined(ZINC_SIMD_AVXVNNI)
inline constexpr int kOffset8 = 128;        // 8-bit weights are stored as u8 = s8 + kOffset8
inline constexpr bool kDotsOfBytes = true;  // unsigned weights may have all eight bits
#else
inline constexpr int kOffset8 = 0;  // 8-bit weights are stored as s8
inline constexpr bool kDotsOfBytes = false;
#endif

struct I32x16 {
    __m256i a, b;
    static I32x16 zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static I32x16 set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
    static I32x16 load(const int32_t* p) {
        const auto* q = reinterpret_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
    }
    void store(int32_t* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, b);
    }
    // Stores the lanes as int8, saturated.
    void store_i8(int8_t* p) const {
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0b11011000);
        const __m128i bytes =
            _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    }
    friend I32x16 operator+(I32x16 x, I32x16 y) {
        return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
    }
    friend I32x16 operator-(I32x16 x, I32x16 y) {
        return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
    }
    friend I32x16 operator*(I32x16 x, I32x16 y) {
        return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
    }
    friend I32x16 max(I32x16 x, I32x16 y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
    friend int32_t sum(I32x16 x) {
        const __m256i eight = _mm256_add_epi32(x.a, x.b);
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
        return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0b10110001)));
    }
    friend int32_t hmax(I32x16 x) {
        const __m256i eight = _mm256_max_epi32(x.a, x.b);
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
        return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0b10110001)));
    }
};

struct F32x16 {
    __m256 a, b;
    static F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static F32x16 load_f16(const uint16_t* p) {
        const auto* q = reinterpret_cast<const __m128i*>(p);
        return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
    }
    static F32x16 load_bf16(const uint16_t* p) {
        const auto* q = reinterpret_cast<const __m128i*>(p);
        auto widen = [](__m128i half) {
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        };
        return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
    }
    // Loads unsigned E4M3 floats times 2^-8: their bits are the upper bits of f16, shifted by seven.
    static F32x16 load_e4m3(const uint8_t* p) {
        const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const __m256i halves = _mm256_slli_epi16(codes, 7);
        return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
    }
    // Loads sixteen unsigned 4-bit values: the low halves of eight bytes, then the high halves.
    static F32x16 load_u4(const uint8_t* p) {
        const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), mask = _mm_set1_epi8(15);
        const __m128i low = _mm_and_si128(two, mask), high = _mm_and_si128(_mm_srli_epi16(two, 4), mask);
        return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high))};
    }
    static F32x16 load_i8(const int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
    }
    // Loads the first n lanes, n in [0, 16]; the others are zero.
    static F32x16 load_n(const float* p, int n) {
        return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
    }
    void store(float* p) const {
        _mm256_storeu_ps(p, a);
        _mm256_storeu_ps(p + 8, b);
    }
    void store_n(float* p, int n) const {
        _mm256_maskstore_ps(p, first_lanes(n), a);
        _mm256_maskstore_ps(p + 8, first_lanes(n - 8), b);
    }
    void store_f16(uint16_t* p) const {
        auto* q = reinterpret_cast<__m128i*>(p);
        _mm_storeu_si128(q, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128(q + 1, _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
    }
    friend F32x16 operator+(F32x16 x, F32x16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
    friend F32x16 operator-(F32x16 x, F32x16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
    friend F32x16 operator*(F32x16 x, F32x16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
    friend F32x16 operator/(F32x16 x, F32x16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
    friend F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
        return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
    }
    // x > y ? x : y and x < y ? x : y, so y when either is NaN.
    friend F32x16 max(F32x16 x, F32x16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
    friend F32x16 min(F32x16 x, F32x16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
    friend F32x16 abs(F32x16 x) {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
    }
    // Rounds to the nearest integer, ties to even.
    friend F32x16 round(F32x16 x) {
        constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
    }
    // Returns x * 2^n for integral n, including subnormal and infinite results. Multiplies by two powers, so
    // that both are normal.
    friend F32x16 ldexp(F32x16 x, F32x16 n) {
        auto scale = [](__m256 value, __m256 power) {
            const __m256 low = _mm256_set1_ps(-250), high = _mm256_set1_ps(250);
            const __m256i whole = _mm256_cvtps_epi32(_mm256_min_ps(high, _mm256_max_ps(low, power)));
            const __m256i half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
            auto power_of_two = [](__m256i e) {
                return _mm256_castsi256_ps(
                    _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
            };
            return _mm256_mul_ps(_mm256_mul_ps(value, power_of_two(half)), power_of_two(rest));
        };
        return {scale(x.a, n.a), scale(x.b, n.b)};
    }
    friend F32x16 where_lt(F32x16 x, F32x16 y, F32x16 yes, F32x16 no) {
        return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
                _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
    }
    // Returns lanes [first, last) of x and the other lanes of `other`.
    friend F32x16 select_lanes(F32x16 x, int first, int last, F32x16 other) {
        auto blend = [&](__m256 value, __m256 rest, int at) {
            const __m256i mask = _mm256_andnot_si256(first_lanes(first - at), first_lanes(last - at));
            return _mm256_blendv_ps(rest, value, _mm256_castsi256_ps(mask));
        };
        return {blend(x.a, other.a, 0), blend(x.b, other.b, 8)};
    }
    friend float sum(F32x16 x) {
        const __m256 eight = _mm256_add_ps(x.a, x.b);
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        four = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
    }
    friend float hmax(F32x16 x) {
        const __m256 eight = _mm256_max_ps(x.a, x.b);
        __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        four = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
    }
    friend I32x16 bits(F32x16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
    friend I32x16 to_i32(F32x16 x) {
        return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
    }  // ties to even

private:
    static __m256i first_lanes(int n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
};

inline F32x16 to_f32(I32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
template <int N>
I32x16 shl(I32x16 x) {
    return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}

// 64 bytes: sixteen rows x four k.
struct U8x64 {
    __m256i a, b;
    static U8x64 load(const void* p) {
        const auto* q = static_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
    }
    static U8x64 set1(uint8_t x) {
        return {_mm256_set1_epi8(static_cast<char>(x)), _mm256_set1_epi8(static_cast<char>(x))};
    }
    static U8x64 repeat(const void* sixteen) {
        const __m256i twice =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(sixteen)));
        return {twice, twice};
    }
    void store(void* p) const {
        _mm256_storeu_si256(static_cast<__m256i*>(p), a);
        _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, b);
    }
    friend U8x64 operator&(U8x64 x, U8x64 y) {
        return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
    }
    friend U8x64 operator|(U8x64 x, U8x64 y) {
        return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
    }
};
// Shifts every byte. Bits that cross from one byte into the next are undefined, so callers mask them.
template <int N>
U8x64 shr(U8x64 x) {
    return {_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)};
}
template <int N>
U8x64 shl(U8x64 x) {
    return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
}

// Looks up each index < 16 in a table of sixteen bytes, given repeated.
inline U8x64 lookup(U8x64 table, U8x64 index) {
    return {_mm256_shuffle_epi8(table.a, index.a), _mm256_shuffle_epi8(table.b, index.b)};
}

// 32 int16: a pair for each of sixteen rows.
struct I16x32 {
    __m256i a, b;
    static I16x32 set1(int16_t x) { return {_mm256_set1_epi16(x), _mm256_set1_epi16(x)}; }
    static I16x32 load(const void* p) {
        const auto* q = static_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
    }
    static I16x32 widen(const int8_t* p) {
        const auto* q = reinterpret_cast<const __m128i*>(p);
        return {_mm256_cvtepi8_epi16(_mm_loadu_si128(q)), _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1))};
    }
    void store(void* p) const {
        _mm256_storeu_si256(static_cast<__m256i*>(p), a);
        _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, b);
    }
    I32x16 even() const {
        return {_mm256_srai_epi32(_mm256_slli_epi32(a, 16), 16),
                _mm256_srai_epi32(_mm256_slli_epi32(b, 16), 16)};
    }
    I32x16 odd() const { return {_mm256_srai_epi32(a, 16), _mm256_srai_epi32(b, 16)}; }
    friend I16x32 operator&(I16x32 x, int16_t mask) {
        return {_mm256_and_si256(x.a, _mm256_set1_epi16(mask)),
                _mm256_and_si256(x.b, _mm256_set1_epi16(mask))};
    }
    friend I16x32 operator*(I16x32 x, int16_t y) {
        return {_mm256_mullo_epi16(x.a, _mm256_set1_epi16(y)), _mm256_mullo_epi16(x.b, _mm256_set1_epi16(y))};
    }
    friend I16x32 operator-(I16x32 x, I16x32 y) {
        return {_mm256_sub_epi16(x.a, y.a), _mm256_sub_epi16(x.b, y.b)};
    }
    friend I16x32 operator-(I16x32 x) { return set1(0) - x; }
    friend I16x32 abs(I16x32 x) { return {_mm256_abs_epi16(x.a), _mm256_abs_epi16(x.b)}; }
};
template <int N>
I16x32 shr(I16x32 x) {
    return {_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)};
}
template <int N>
I16x32 shl(I16x32 x) {
    return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
}

// Adds to each lane of acc the dot product of its pair with `pair`, two int16.
inline I32x16 dot2(I32x16 acc, I16x32 x, int32_t pair) {
    const __m256i y = _mm256_set1_epi32(pair);
    return acc + I32x16{_mm256_madd_epi16(x.a, y), _mm256_madd_epi16(x.b, y)};
}

#if defined(ZINC_SIMD_AVXVNNI)

// Adds to each lane of acc the dot product of its four u8 with `four`, four s8.
inline I32x16 dot4(I32x16 acc, U8x64 w, int32_t four) {
    const __m256i x = _mm256_set1_epi32(four);
    return {_mm256_dpbusd_avx_epi32(acc.a, w.a, x), _mm256_dpbusd_avx_epi32(acc.b, w.b, x)};
}

// Accumulates dot products over up to kRun groups of four k before total() is read. On this level every width
// of the weights is one instruction.
struct Dot {
    static constexpr int kRun = 64;
    I32x16 acc = I32x16::zero();
    void add(U8x64 w, int32_t four) { acc = dot4(acc, w, four); }
    I32x16 total() const { return acc; }
};
template <int kBits>
using Dot4 = Dot;

#else

// Adds to each lane of acc the dot product of its four u8 with `four`, four s8. Bits 0..6 and bit 7 are
// multiplied separately, so that maddubs does not saturate.
inline I32x16 dot4(I32x16 acc, U8x64 w, int32_t four) {
    const __m256i x = _mm256_set1_epi32(four), one = _mm256_set1_epi16(1), two = _mm256_set1_epi16(2);
    auto dot = [&](__m256i u) {
        const __m256i low = _mm256_and_si256(u, _mm256_set1_epi8(0x7f));
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(u, 1), _mm256_set1_epi8(0x40));
        return _mm256_add_epi32(_mm256_madd_epi16(_mm256_maddubs_epi16(low, x), one),
                                _mm256_madd_epi16(_mm256_maddubs_epi16(high, x), two));
    };
    return acc + I32x16{dot(w.a), dot(w.b)};
}

// Accumulates dot products over up to kRun groups of four k before total() is read. Weights have kBits
// unsigned bits; 8 means the full range as the level stores it (kOffset8), whose products leave no room for
// sums in 16 bits.
template <int kBits>
struct Dot4 {
    static constexpr int kRun = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : kBits == 7 ? 1 : 64;
    static_assert(kBits == 8 || kRun * 2 * ((1 << kBits) - 1) * 127 <= 32767);
    __m256i a = _mm256_setzero_si256(), b = _mm256_setzero_si256();
    void add(U8x64 w, int32_t four) {
        const __m256i x = _mm256_set1_epi32(four);
        if constexpr (kBits < 8) {
            a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w.a, x));
            b = _mm256_add_epi16(b, _mm256_maddubs_epi16(w.b, x));
        } else {
            a = _mm256_add_epi32(a, in_pairs(signed_products(w.a, x)));
            b = _mm256_add_epi32(b, in_pairs(signed_products(w.b, x)));
        }
    }
    I32x16 total() const {
        if constexpr (kBits < 8) return {in_pairs(a), in_pairs(b)};
        return {a, b};
    }

private:
    static __m256i in_pairs(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
    static __m256i signed_products(__m256i w, __m256i x) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    }
};

#endif

#define ZINC_HAS_SUMS16 1
// Stores the sum of each sixteen of 64 int8.
inline void sums16(const int8_t* x, int32_t* sums) {
    for (int i = 0; i < 2; ++i) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 32 * i));
        const __m256i eights =
            _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
        const __m256i all = _mm256_add_epi64(eights, _mm256_shuffle_epi32(eights, 0b01001110));
        sums[2 * i] = _mm256_extract_epi32(all, 0) - 16 * 128;
        sums[2 * i + 1] = _mm256_extract_epi32(all, 4) - 16 * 128;
    }
}

// Size of the register block of the matrix product: tiles of 16 weight rows x rows of x.
inline constexpr int kTileBlock = 1, kTokenBlock = 3;
inline constexpr int kFewRows = 2;  // most rows in a product that unpacks weights in registers

}  // namespace zinc::ZINC_LEVEL
