// The inner loops of attention: rows of queries against tiles of sixteen keys.
//
// A row is one query head of one token; rows that share a KV head go through a tile together, so that a
// vector of keys or values is loaded once for all of them. The templates differ in how many rows and tiles
// are in registers and in where keys and values come from (the cache as f16, int8 or int4, or a panel of
// floats that was made from it); every output is summed over dimensions (scores) or over keys (values) in
// ascending order in all of them, so they all give the same bits.
#pragma once

#include <algorithm>
#include <cfloat>
#include <limits>

#include "../unroll.h"
#include "kv_layout.h"
#include "math.h"

namespace zinc::ZINC_LEVEL {

inline constexpr int kKeyBlock = 64;  // keys between two looks at the running maximum
inline constexpr int kBlockTiles = kKeyBlock / kKvTile;
inline constexpr int kMaxRows = 6;  // rows in registers

// Vectors that so many rows can each have in registers, beside as many operands and a broadcast.
constexpr int vectors_for(int rows, int most) {
    while (most > 1 && (rows + 1) * most >= kVectorRegisters) most /= 2;
    return most;
}

// ---- where keys and values come from
//
// A tile of the cache knows the tile that will be read after it (`ahead`) and asks for it line by line while
// it is read itself: the hardware's prefetcher starts anew at every page, and a tile is about a page. Into
// the second-level cache: a block of keys and one of values are as large as the first. Of int8 the values ask
// for the keys and the values of the next block, for their arithmetic takes most of the time and requests
// must keep pace with memory: the keys are through in a fraction of what their bytes take to arrive.

inline constexpr int kLine = 64;  // bytes
inline void prefetch(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

// Each kind of tile gives a cursor at an element, a multiple of 16; load(i) is the i-th vector from there.
struct HalfTile {
    const std::byte *p, *ahead;
    struct Cursor {
        const uint16_t* p;
        const std::byte* ahead;
        void advance(int elements) {
            p += elements;
            ahead += 2 * elements;
        }
        F32x16 load(int i) const { return F32x16::load_f16(p + 16 * i); }
        void prefetch_for(int i) const {
            if (i % 2 == 0) prefetch(ahead + 32 * i);
        }
    };
    Cursor at(int element) const {
        return {reinterpret_cast<const uint16_t*>(p) + element, ahead + 2 * element};
    }
};

struct FloatTile {
    const float* p;
    struct Cursor {
        const float* p;
        void advance(int elements) { p += elements; }
        F32x16 load(int i) const { return F32x16::load(p + 16 * i); }
        void prefetch_for(int) const {}
    };
    Cursor at(int element) const { return {p + element}; }
};

// Values in int8. Vectors come one at a time or from a multiple of 32 elements on, so two share a scale.
struct ByteTile {
    const std::byte *p, *ahead_keys, *ahead_values;
    const float* scales;  // one for 32 elements
    struct Cursor {
        const int8_t* p;
        const std::byte *ahead_keys, *ahead_values;
        const float* scales;
        void advance(int elements) {  // a multiple of 32
            p += elements;
            ahead_keys += elements;
            ahead_values += elements;
            scales += elements / kKvGroup;
        }
        F32x16 load(int i) const { return F32x16::load_i8(p + 16 * i) * F32x16::set1(scales[i / 2]); }
        void prefetch_for(int i) const {
            if (i % 4 != 0) return;
            prefetch(ahead_keys + 16 * i);
            prefetch(ahead_values + 16 * i);
        }
    };
    Cursor at(int element) const {
        return {reinterpret_cast<const int8_t*>(p) + element, ahead_keys + element, ahead_values + element,
                scales + element / kKvGroup};
    }
};

// The same in four bits, two to a byte.
struct NibbleTile {
    const std::byte *p, *ahead_keys, *ahead_values;
    const float* scales;
    struct Cursor {
        const uint8_t* p;
        const std::byte *ahead_keys, *ahead_values;
        const float* scales;
        void advance(int elements) {
            p += elements / 2;
            ahead_keys += elements / 2;
            ahead_values += elements / 2;
            scales += elements / kKvGroup;
        }
        F32x16 load(int i) const {
            return (F32x16::load_u4(p + 8 * i) - F32x16::set1(8.0f)) * F32x16::set1(scales[i / 2]);
        }
        void prefetch_for(int i) const {
            if (i % 8 != 0) return;
            prefetch(ahead_keys + 8 * i);
            prefetch(ahead_values + 8 * i);
        }
    };
    Cursor at(int element) const {
        return {reinterpret_cast<const uint8_t*>(p) + element / 2, ahead_keys + element / 2,
                ahead_values + element / 2, scales + element / kKvGroup};
    }
};

// Keys as unsigned integers, kOffset above what they stand for. words(group, i) are dimensions 4 i to 4 i + 3
// of a group of 32, a byte each.
struct ByteKeyTile {
    static constexpr int kOffset = 128;
    static constexpr KvType kType = KvType::q8_0;
    const std::byte* p;
    U8x64 four(int group, int i) const { return U8x64::load(p + (group * 8 + i) * 64); }
    I16x32 words(int group, int i) const { return I16x32::load(p + (group * 8 + i) * 64); }
};
struct NibbleKeyTile {
    static constexpr int kOffset = 8;
    static constexpr KvType kType = KvType::q4_0;
    const std::byte* p;
    U8x64 four(int group, int i) const {
        const U8x64 two = U8x64::load(p + (group * 4 + i % 4) * 64);
        return (i < 4 ? two : shr<4>(two)) & U8x64::set1(15);
    }
    I16x32 words(int group, int i) const {
        const I16x32 two = I16x32::load(p + (group * 4 + i % 4) * 64);
        return (i < 4 ? two : shr<4>(two)) & 0x0f0f;
    }
};
// The scales of a group of such a tile, one a position.
template <class Keys>
inline F32x16 key_scales(const Keys& keys, int dim, int group) {
    const std::byte* scales = keys.p + kv_quant_bytes(dim, Keys::kType);
    return F32x16::load_f16(reinterpret_cast<const uint16_t*>(scales) + group * kKvTile);
}

// One run-time row count in [1, max] to a template argument.
template <int max, class F>
inline void with_rows(int rows, F&& f) {
    if constexpr (max > 1) {
        if (rows < max) return with_rows<max - 1>(rows, f);
    }
    f(std::integral_constant<int, max>{});
}

// ---- scores

// s[r][16 j + lane] = sum over d of q[r][d] * key[j][d][lane], for R rows and N tiles. q rows are `dim`
// apart, s rows kKeyBlock. This is the function to replace where a CPU multiplies bf16 faster than f32.
template <int R, int N, class Keys>
inline void dot_keys(const float* q, int dim, const Keys* keys, float* s) {
    F32x16 sum[R][N];
    ZINC_UNROLL
    for (int r = 0; r < R; ++r) {
        ZINC_UNROLL
        for (int j = 0; j < N; ++j) sum[r][j] = F32x16::zero();
    }
    for (int d = 0; d < dim; d += 2) {
        typename Keys::Cursor key[N];
        ZINC_UNROLL
        for (int j = 0; j < N; ++j) {
            key[j] = keys[j].at(d * kKvTile);
            key[j].prefetch_for(0);
        }
        ZINC_UNROLL
        for (int i = 0; i < 2; ++i) {
            F32x16 k[N];
            ZINC_UNROLL
            for (int j = 0; j < N; ++j) k[j] = key[j].load(i);
            ZINC_UNROLL
            for (int r = 0; r < R; ++r) {
                const F32x16 x = F32x16::set1(q[r * dim + d + i]);
                ZINC_UNROLL
                for (int j = 0; j < N; ++j) sum[r][j] = fma(x, k[j], sum[r][j]);
            }
        }
    }
    ZINC_UNROLL
    for (int r = 0; r < R; ++r) {
        ZINC_UNROLL
        for (int j = 0; j < N; ++j) sum[r][j].store(s + r * kKeyBlock + j * kKvTile);
    }
}

// A query row for integer keys: quants, and per group of 32 dimensions its scale (the softmax scale included)
// and (kDotOffset - kOffset) * (sum of the quants), which takes back the offset of the unsigned keys.
struct ByteQuery {
    int8_t* quants;
    float* scales;
    int32_t* offsets;
};

// The same against integer keys: exact sums per group of 32, then one fma a group in ascending order.
template <int R, int N, class Keys>
inline void dot_byte_keys(const ByteQuery& q, int dim, const Keys* keys, float* s) {
    const int groups = dim / kKvGroup;
    F32x16 total[R][N];
    ZINC_UNROLL
    for (int r = 0; r < R; ++r) {
        ZINC_UNROLL
        for (int j = 0; j < N; ++j) total[r][j] = F32x16::zero();
    }
    for (int g = 0; g < groups; ++g) {
        I32x16 sum[R][N];
        ZINC_UNROLL
        for (int r = 0; r < R; ++r) {
            ZINC_UNROLL
            for (int j = 0; j < N; ++j) sum[r][j] = I32x16::set1(q.offsets[r * groups + g]);
        }
        ZINC_UNROLL
        for (int i = 0; i < kKvGroup / 4; ++i) {
            U8x64 k[N];
            ZINC_UNROLL
            for (int j = 0; j < N; ++j) k[j] = keys[j].four(g, i);
            ZINC_UNROLL
            for (int r = 0; r < R; ++r) {
                int32_t four;
                std::memcpy(&four, q.quants + r * dim + g * kKvGroup + 4 * i, 4);
                ZINC_UNROLL
                for (int j = 0; j < N; ++j) sum[r][j] = dot4(sum[r][j], k[j], four);
            }
        }
        ZINC_UNROLL
        for (int j = 0; j < N; ++j) {
            const F32x16 scale = key_scales(keys[j], dim, g);
            ZINC_UNROLL
            for (int r = 0; r < R; ++r)
                total[r][j] =
                    fma(to_f32(sum[r][j]) * F32x16::set1(q.scales[r * groups + g]), scale, total[r][j]);
        }
    }
    ZINC_UNROLL
    for (int r = 0; r < R; ++r) {
        ZINC_UNROLL
        for (int j = 0; j < N; ++j) total[r][j].store(s + r * kKeyBlock + j * kKvTile);
    }
}

// ---- softmax

// The running maximum and sum of one row, the sum still by lane. Logits are in units of log 2: exp2 saves a
// multiply.
struct RowState {
    float max;
    float pad[15];
    float sum[16];
    void clear() {
        max = -FLT_MAX;  // finite, so that max - max is 0 for a row that has not met a key
        for (float& x : sum) x = 0.0f;
    }
};

// Scores of the tiles [first_tile, last_tile) of a block to probabilities relative to the new running
// maximum. Keys outside [first, last) get probability 0. cap = 0: none. Returns the factor for what has been
// summed so far.
inline float softmax_block(float* s, int first_tile, int last_tile, int first, int last, float cap,
                           RowState& row) {
    const F32x16 minus_inf = F32x16::set1(-std::numeric_limits<float>::infinity());
    F32x16 x[kBlockTiles], top = minus_inf;
    for (int j = first_tile; j < last_tile; ++j) {
        x[j] = F32x16::load(s + j * kKvTile);
        if (cap != 0.0f) x[j] = tanh(x[j]) * F32x16::set1(cap);
        const int from = first - j * kKvTile, to = last - j * kKvTile;
        if (from > 0 || to < kKvTile)
            x[j] = keep(x[j], std::clamp(from, 0, kKvTile), std::clamp(to, 0, kKvTile), minus_inf);
        top = max(top, x[j]);
    }
    const float before = row.max, after = std::max(before, hmax(top));
    float factor = 1.0f;
    F32x16 sum = F32x16::load(row.sum);
    if (after != before) {
        const F32x16 f = exp2(F32x16::set1(before - after));
        f.store(row.sum);
        factor = row.sum[0];
        sum = sum * f;
        row.max = after;
    }
    for (int j = first_tile; j < last_tile; ++j) {
        const F32x16 p = exp2(x[j] - F32x16::set1(after));
        p.store(s + j * kKvTile);
        sum = sum + p;
    }
    sum.store(row.sum);
    return factor;
}

// ---- values

// acc[r][at ..] = acc * factor[r] + sum over keys [first, last) of a block of p[r][key] * value[key][at ..],
// for R rows and N vectors of dimensions. acc rows are `dim` apart, p rows kKeyBlock.
template <int R, int N, class Values>
inline void add_values(const float* p, const float* factor, const Values* values, int first, int last,
                       int dim, int at, float* acc) {
    F32x16 sum[R][N];
    ZINC_UNROLL
    for (int r = 0; r < R; ++r) {
        ZINC_UNROLL
        for (int i = 0; i < N; ++i)
            sum[r][i] = F32x16::load(acc + r * dim + at + 16 * i) * F32x16::set1(factor[r]);
    }
    for (int tile = first / kKvTile * kKvTile; tile < last; tile += kKvTile) {
        const Values& from = values[tile / kKvTile];
        const int begin = std::max(first, tile), end = std::min(last, tile + kKvTile);
        typename Values::Cursor value = from.at((begin - tile) * dim + at);
        for (int key = begin; key < end; ++key, value.advance(dim)) {
            F32x16 v[N];
            ZINC_UNROLL
            for (int i = 0; i < N; ++i) {
                value.prefetch_for(i);
                v[i] = value.load(i);
            }
            ZINC_UNROLL
            for (int r = 0; r < R; ++r) {
                const F32x16 x = F32x16::set1(p[r * kKeyBlock + key]);
                ZINC_UNROLL
                for (int i = 0; i < N; ++i) sum[r][i] = fma(x, v[i], sum[r][i]);
            }
        }
    }
    ZINC_UNROLL
    for (int r = 0; r < R; ++r) {
        ZINC_UNROLL
        for (int i = 0; i < N; ++i) sum[r][i].store(acc + r * dim + at + 16 * i);
    }
}

template <int R, class Values>
inline void add_all_values(const float* p, const float* factor, const Values* values, int first, int last,
                           int dim, float* acc) {
    constexpr int wide = vectors_for(R, 8);
    int at = 0;
    for (; at + 16 * wide <= dim; at += 16 * wide)
        add_values<R, wide>(p, factor, values, first, last, dim, at, acc);
    if constexpr (wide > 1) {
        for (; at < dim; at += 16) add_values<R, 1>(p, factor, values, first, last, dim, at, acc);
    }
}

// ---- merging

// Folds a split's state into the total of the splits before it.
inline void fold(RowState& total, float* total_acc, const RowState& part, const float* part_acc, int dim) {
    const float top = std::max(total.max, part.max);
    const F32x16 a = exp2(F32x16::set1(total.max - top)), b = exp2(F32x16::set1(part.max - top));
    total.max = top;
    fma(F32x16::load(part.sum), b, F32x16::load(total.sum) * a).store(total.sum);
    for (int i = 0; i < dim; i += 16)
        fma(F32x16::load(part_acc + i), b, F32x16::load(total_acc + i) * a).store(total_acc + i);
}

// Divides by the sum, to which a sink (a logit without a value, in units of log 2) may add.
inline void finish(const RowState& row, const float* acc, const float* sink, int dim, float* out) {
    F32x16 all = F32x16::set1(sum(F32x16::load(row.sum))), factor = F32x16::set1(1.0f);
    if (sink) {
        const float top = std::max(row.max, *sink);
        factor = exp2(F32x16::set1(row.max - top));
        all = fma(all, factor, exp2(F32x16::set1(*sink - top)));
    }
    factor = factor / all;
    for (int i = 0; i < dim; i += 16) (F32x16::load(acc + i) * factor).store(out + i);
}

}  // namespace zinc::ZINC_LEVEL
