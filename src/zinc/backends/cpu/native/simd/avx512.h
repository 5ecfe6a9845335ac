// Sixteen lanes in one zmm register: AVX-512 F, BW, DQ, VL and VNNI (Ice Lake, Zen 4 and later).
#pragma once

#include <immintrin.h>

namespace zinc::ZINC_LEVEL {

inline constexpr int kVectorRegisters = 32;  // sixteen-lane values that fit in registers
inline constexpr int kOffset8 = 128;         // 8-bit weights are stored as u8 = s8 + kOffset8, for dot4
inline constexpr int kDotOffset = 0;         // dot4 takes u8 unchanged
inline constexpr bool kDotsOfBytes = true;   // unsigned weights may have all eight bits

struct I32x16 {
    __m512i v;
    static I32x16 zero() { return {_mm512_setzero_si512()}; }
    static I32x16 set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
    static I32x16 load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
    void store(int32_t* p) const { _mm512_storeu_si512(p, v); }
    // Stores the lanes as int8, saturated.
    void store_i8(int8_t* p) const {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v));
    }
    friend I32x16 operator+(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
    friend I32x16 operator-(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
    friend I32x16 operator*(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
    friend I32x16 max(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
    friend int32_t sum(I32x16 a) { return _mm512_reduce_add_epi32(a.v); }
    friend int32_t hmax(I32x16 a) { return _mm512_reduce_max_epi32(a.v); }
};

struct F32x16 {
    __m512 v;
    static F32x16 zero() { return {_mm512_setzero_ps()}; }
    static F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
    static F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static F32x16 load_f16(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    static F32x16 load_bf16(const uint16_t* p) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
    }
    // Loads unsigned E4M3 floats times 2^-8: their bits are the upper bits of f16, shifted by seven.
    static F32x16 load_e4m3(const uint8_t* p) {
        const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return {_mm512_cvtph_ps(_mm256_slli_epi16(codes, 7))};
    }
    // Loads sixteen unsigned 4-bit values: the low halves of eight bytes, then the high halves.
    static F32x16 load_u4(const uint8_t* p) {
        const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        const __m128i apart = _mm_unpacklo_epi64(two, _mm_srli_epi16(two, 4));
        const __m128i bytes = _mm_and_si128(apart, _mm_set1_epi8(15));
        return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
    }
    static F32x16 load_i8(const int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
    }
    // Loads the first n lanes, n in [0, 16]; the others are zero.
    static F32x16 load_n(const float* p, int n) {
        return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p)};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    void store_n(float* p, int n) const {
        _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
    }
    void store_f16(uint16_t* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    friend F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
    friend F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
    friend F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
    // a > b ? a : b and a < b ? a : b, so b when either is NaN.
    friend F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
    friend F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
    friend F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
    // Rounds to the nearest integer, ties to even.
    friend F32x16 round(F32x16 a) {
        return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
    }
    // Returns a * 2^n for integral n, including subnormal and infinite results.
    friend F32x16 ldexp(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
    friend F32x16 where_lt(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
        return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
    }
    // Returns lanes [first, last) of a and the other lanes of `other`.
    friend F32x16 select_lanes(F32x16 a, int first, int last, F32x16 other) {
        const __mmask16 mask = static_cast<__mmask16>(((1u << last) - 1) & ~((1u << first) - 1));
        return {_mm512_mask_blend_ps(mask, other.v, a.v)};
    }
    friend float sum(F32x16 a) { return _mm512_reduce_add_ps(a.v); }
    friend float hmax(F32x16 a) { return _mm512_reduce_max_ps(a.v); }
    friend I32x16 bits(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
    friend I32x16 to_i32(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // ties to even
};

inline F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
template <int N>
I32x16 shl(I32x16 a) {
    return {_mm512_slli_epi32(a.v, N)};
}

// 64 bytes: sixteen rows x four k.
struct U8x64 {
    __m512i v;
    static U8x64 load(const void* p) { return {_mm512_loadu_si512(p)}; }
    static U8x64 set1(uint8_t x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
    static U8x64 repeat(const void* sixteen) {
        return {_mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(sixteen)))};
    }
    void store(void* p) const { _mm512_storeu_si512(p, v); }
    friend U8x64 operator&(U8x64 a, U8x64 b) { return {_mm512_and_si512(a.v, b.v)}; }
    friend U8x64 operator|(U8x64 a, U8x64 b) { return {_mm512_or_si512(a.v, b.v)}; }
    friend U8x64 operator-(U8x64 a, U8x64 b) { return {_mm512_sub_epi8(a.v, b.v)}; }
};
// Shifts every byte. Bits that cross from one byte into the next are undefined, so callers mask them.
template <int N>
U8x64 shr(U8x64 a) {
    return {_mm512_srli_epi16(a.v, N)};
}
template <int N>
U8x64 shl(U8x64 a) {
    return {_mm512_slli_epi16(a.v, N)};
}

// Looks up each index < 16 in a table of sixteen bytes, given repeated.
inline U8x64 lookup(U8x64 table, U8x64 index) { return {_mm512_shuffle_epi8(table.v, index.v)}; }

// 32 int16: a pair for each of sixteen rows.
struct I16x32 {
    __m512i v;
    static I16x32 set1(int16_t x) { return {_mm512_set1_epi16(x)}; }
    static I16x32 load(const void* p) { return {_mm512_loadu_si512(p)}; }
    static I16x32 widen(const int8_t* p) {
        return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    void store(void* p) const { _mm512_storeu_si512(p, v); }
    I32x16 even() const { return {_mm512_srai_epi32(_mm512_slli_epi32(v, 16), 16)}; }
    I32x16 odd() const { return {_mm512_srai_epi32(v, 16)}; }
    // Copies the even (kOdd 0) or odd (kOdd 1) element of each pair to both elements.
    template <int kOdd>
    I16x32 twice() const {
        const __m512i other = kOdd ? _mm512_srli_epi32(v, 16) : _mm512_slli_epi32(v, 16);
        return {_mm512_mask_blend_epi16(kOdd ? 0x55555555 : 0xaaaaaaaa, v, other)};
    }
    friend I16x32 operator*(I16x32 a, I16x32 b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
    friend I16x32 operator+(I16x32 a, I16x32 b) { return {_mm512_add_epi16(a.v, b.v)}; }
    friend I16x32 operator&(I16x32 a, int16_t mask) {
        return {_mm512_and_si512(a.v, _mm512_set1_epi16(mask))};
    }
    friend I16x32 operator*(I16x32 a, int16_t x) { return {_mm512_mullo_epi16(a.v, _mm512_set1_epi16(x))}; }
    friend I16x32 operator-(I16x32 a, I16x32 b) { return {_mm512_sub_epi16(a.v, b.v)}; }
    friend I16x32 operator-(I16x32 a) { return {_mm512_sub_epi16(_mm512_setzero_si512(), a.v)}; }
    friend I16x32 abs(I16x32 a) { return {_mm512_abs_epi16(a.v)}; }
};
template <int N>
I16x32 shr(I16x32 a) {
    return {_mm512_srli_epi16(a.v, N)};
}
template <int N>
I16x32 shl(I16x32 a) {
    return {_mm512_slli_epi16(a.v, N)};
}

inline I16x32 words(U8x64 a) { return {a.v}; }
// Multiplies u8 in a by s8 in b and adds neighbouring products.
inline I16x32 products(U8x64 a, I16x32 b) { return {_mm512_maddubs_epi16(a.v, b.v)}; }
// Returns the odd bytes of a and the even bytes of b, each in its place.
inline I16x32 odd_bytes(I16x32 a, I16x32 b) { return {_mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, b.v, a.v)}; }

// Adds to each lane of acc the dot product of its pair with `pair`, two int16.
inline I32x16 dot2(I32x16 acc, I16x32 a, int32_t pair) {
    return {_mm512_dpwssd_epi32(acc.v, a.v, _mm512_set1_epi32(pair))};
}

// dot2 multiplies twice as many values as fma in the same time.
#define ZINC_HAS_FAST_DOT2 1
// dot2 with the same pair in all lanes of `pairs`. In assembly, because GCC would copy accumulators.
inline I32x16 dot2(I32x16 acc, I16x32 a, I16x32 pairs) {
    asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(pairs.v));
    return acc;
}
inline I16x32 set1_pair(int32_t pair) { return {_mm512_set1_epi32(pair)}; }
// Returns the pairs (even lane, odd lane) of values that fit in 16 bits.
inline I16x32 pairs_of(I32x16 even, I32x16 odd) {
    return {_mm512_mask_blend_epi16(0xaaaaaaaa, even.v, _mm512_slli_epi32(odd.v, 16))};
}

// Adds to each lane of acc the dot product of its four u8 with `four`, four s8.
inline I32x16 dot4(I32x16 acc, U8x64 w, int32_t four) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four))};
}
// dot4 with `four` in memory: without it GCC would load and broadcast them in a separate instruction.
inline I32x16 dot4(I32x16 acc, U8x64 w, const int8_t* four) {
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(acc.v)
        : "v"(w.v), "m"(*reinterpret_cast<const int8_t (*)[4]>(four)));
    return acc;
}

// Accumulates dot products over up to kRun groups of four k before total() is read. Weights have kBits
// unsigned bits; 8 means the full range as the level stores it (kOffset8). On this level every width is one
// instruction.
struct Dot {
    static constexpr int kRun = 64;
    I32x16 acc = I32x16::zero();
    void add(U8x64 w, int32_t four) { acc = dot4(acc, w, four); }
    void add(U8x64 w, const int8_t* four) { acc = dot4(acc, w, four); }
    I32x16 total() const { return acc; }
};
template <int kBits>
using Dot4 = Dot;

// Size of the register block of the matrix product: tiles of 16 weight rows x rows of x.
inline constexpr int kTileBlock = 2, kTokenBlock = 6;
inline constexpr int kFewRows = 8;  // most rows in a product that unpacks weights in registers

#define ZINC_HAS_SUMS16 1
// Stores the sum of each sixteen of 64 int8.
inline void sums16(const int8_t* x, int32_t* sums) {
    const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(x), _mm512_set1_epi8(-128));  // x + 128
    const __m512i eights = _mm512_sad_epu8(bytes, _mm512_setzero_si512());
    const __m512i all = _mm512_add_epi64(eights, _mm512_shuffle_epi32(eights, _MM_PERM_BADC));
    const __m512i signed_sums = _mm512_sub_epi32(all, _mm512_set1_epi32(16 * 128));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                     _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, signed_sums)));
}

#define ZINC_HAS_STORE_I8_SUMS 1
// Stores the 64 lanes of v as int8, saturated, and the sum of each sixteen.
inline void store_i8(const I32x16 (&v)[4], int8_t* q, int16_t* sums) {
    // Each quarter has four bytes of each vector.
    const __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(v[0].v, v[1].v), _mm512_packs_epi32(v[2].v, v[3].v));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(q, _mm512_permutexvar_epi32(order, bytes));
    const __m512i fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
    const __m256i eights =
        _mm256_add_epi32(_mm512_castsi512_si256(fours), _mm512_extracti64x4_epi64(fours, 1));
    const __m128i all = _mm_add_epi32(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(sums), _mm_packs_epi32(all, all));
}

#define ZINC_HAS_HMAX16 1
// Returns the largest lane of each v[i] in lane i.
inline I32x16 hmax(const I32x16 (&v)[16]) {
    __m512i two[8], four[4], eight[2];
    for (int i = 0; i < 8; ++i) {
        const __m512i a = v[2 * i].v, b = v[2 * i + 1].v;
        two[i] = _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
    for (int i = 0; i < 4; ++i) {
        const __m512i a = two[2 * i], b = two[2 * i + 1];
        four[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    // Each quarter of four[i] has a maximum of v[4 i] to v[4 i + 3].
    for (int i = 0; i < 2; ++i) {
        const __m512i a = four[2 * i], b = four[2 * i + 1];
        eight[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    }
    return {_mm512_max_epi32(_mm512_shuffle_i32x4(eight[0], eight[1], 0x88),
                             _mm512_shuffle_i32x4(eight[0], eight[1], 0xdd))};
}

#define ZINC_HAS_TRANSPOSE 1
// Transposes 16 x 16 floats: to[j][i] = from[i][j]. Rows are from_step and to_step floats apart.
inline void transpose16(const float* from, int64_t from_step, float* to, int64_t to_step) {
    __m512 r[16], t[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * from_step);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    auto pairs = [](__m512 a, __m512 b, bool high) {
        const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
        return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
    };
    for (int i = 0; i < 16; ++i) r[i] = pairs(t[i / 4 * 4 + i % 4 / 2], t[i / 4 * 4 + i % 4 / 2 + 2], i % 2);
    // Quarter q of r[4 i + c] holds column 4 q + c of rows 4 i to 4 i + 3.
    for (int c = 0; c < 4; ++c) {
        const __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88),
                     b = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd),
                     e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
        _mm512_storeu_ps(to + c * to_step, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(to + (4 + c) * to_step, _mm512_shuffle_f32x4(d, e, 0x88));
        _mm512_storeu_ps(to + (8 + c) * to_step, _mm512_shuffle_f32x4(a, b, 0xdd));
        _mm512_storeu_ps(to + (12 + c) * to_step, _mm512_shuffle_f32x4(d, e, 0xdd));
    }
}

// Instructions of later processors, used only by the formats of their levels (kernels/weights.h). They are
// written in assembly: kernels are compiled once for all these levels, and the compiler must not use the
// instructions elsewhere.
#define ZINC_HAS_AMX 1
#define ZINC_HAS_BF16 1

// Adds to each lane of acc the dot product of its pair of bfloat16 with `pair`.
inline F32x16 dot2_bf16(F32x16 acc, const void* weights, int32_t pair) {
    const __m512i w = _mm512_loadu_si512(weights), x = _mm512_set1_epi32(pair);
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc.v) : "v"(w), "v"(x));
    return acc;
}

}  // namespace zinc::ZINC_LEVEL
