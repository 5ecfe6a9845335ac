// The inner loops of attention: rows of queries against tiles of sixteen keys.
//
// A row is one query head of one token. Rows that share a KV head are processed together, so that a vector of
// keys or values is loaded once for all of them. Template arguments are the number of rows and tiles in
// registers and the source of keys and values: the cache as f16, int8 or int4, or a panel of floats converted
// from it. Every instantiation sums over dimensions (scores) or keys (values) in ascending order, so all give
// the same bits.
#pragma once

#include <algorithm>
#include <limits>

#include "../unroll.h"
#include "kv_layout.h"
#include "math.h"

namespace zinc::ZINC_LEVEL {

inline constexpr int kKeyBlock = 64;  // keys between two updates of the running maximum
inline constexpr int kBlockTiles = kKeyBlock / kKvTile;
inline constexpr int kMaxRows = 6;  // most rows in registers
// The same if all keys are in one tile: more rows hide the latency of fma.
inline constexpr int kOneTileRows = kVectorRegisters >= 32 ? 8 : kMaxRows;

// Number of vectors that each of `rows` rows can keep in registers, next to as many operands and a broadcast.
constexpr int vectors_for(int rows, int most) {
    while (most > 1 && (rows + 1) * most >= kVectorRegisters) most /= 2;
    return most;
}

// ---- sources of keys and values
//
// A tile of the cache has a pointer to the tile that is read next (`ahead`). It prefetches that tile line by
// line while its own data is read: the hardware prefetcher restarts at every page, and a tile is about a
// page. Prefetches go to the L2 cache, because a block of keys and a block of values fill L1. With integers,
// the tiles of values prefetch both keys and values of the next block: the arithmetic on values takes most of
// the time, while keys are processed much faster than memory delivers them.

inline constexpr int kLine = 64;  // bytes
inline void prefetch(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

// Every kind of tile gives a cursor at an element, a multiple of 16. load(i) returns the i-th vector after
// it.
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

// Values as int8. A cursor starts at a multiple of 32 elements or loads one vector, so vectors 2 i and 2 i +
// 1 share a scale.
struct ByteTile {
    const std::byte *p, *ahead_keys, *ahead_values;
    const float* scales;  // one for each 32 elements
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

// Values in four bits, two to a byte.
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

// Keys as unsigned integers, biased by kOffset. four(group, i) and words(group, i) are dimensions 4 i to 4 i
// + 3 of a group of 32, one byte each.
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
// The scales of a group of such a tile, one for each position.
template <class Keys>
inline F32x16 key_scales(const Keys& keys, int dim, int group) {
    const std::byte* scales = keys.p + kv_quant_bytes(dim, Keys::kType);
    return F32x16::load_f16(reinterpret_cast<const uint16_t*>(scales) + group * kKvTile);
}

// Calls f with `rows`, from 1 to max, as a constant.
template <int max, class F>
inline void with_rows(int rows, F&& f) {
    if constexpr (max > 1) {
        if (rows < max) return with_rows<max - 1>(rows, f);
    }
    f(std::integral_constant<int, max>{});
}

// ---- scores

// s[r][16 j + lane] = sum over d of q[r][d] * key[j][d][lane] for R rows and N tiles. Rows of q are `dim`
// floats apart, rows of s kKeyBlock. A CPU that multiplies bf16 faster than f32 could have its own version of
// this function.
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

// Query rows for integer keys: quants, and for each group of 32 dimensions the scale (including the softmax
// scale) and (kDotOffset - kOffset) * (sum of the quants), which cancels the offset of the unsigned keys.
struct ByteQuery {
    int8_t* quants;
    float* scales;
    int32_t* offsets;
};

// dot_keys for integer keys: exact integer sums for each group of 32, then one fma a group in ascending
// order.
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

// The running maximum and sum of one row; the sum is kept for each lane. Logits are exponents of 2, so that
// exp2 needs no multiplication.
struct RowState {
    float max;
    float pad[15];
    float sum[16];
    void clear() {
        max = std::numeric_limits<float>::lowest();  // finite: max - max is 0 for a row without keys
        for (float& x : sum) x = 0.0f;
    }
};

// Replaces the scores of tiles [first_tile, last_tile) of a block by probabilities relative to the new
// running maximum. Keys outside [first, last) get probability 0. A cap of 0 means no softcap. Returns the
// factor by which sums over earlier keys must be multiplied.
inline float softmax_block(float* s, int first_tile, int last_tile, int first, int last, float cap,
                           RowState& row) {
    const F32x16 minus_inf = F32x16::set1(-std::numeric_limits<float>::infinity());
    F32x16 x[kBlockTiles], top = minus_inf;
    for (int j = first_tile; j < last_tile; ++j) {
        x[j] = F32x16::load(s + j * kKvTile);
        if (cap != 0.0f) x[j] = tanh(x[j]) * F32x16::set1(cap);
        const int from = first - j * kKvTile, to = last - j * kKvTile;
        if (from > 0 || to < kKvTile)
            x[j] = select_lanes(x[j], std::clamp(from, 0, kKvTile), std::clamp(to, 0, kKvTile), minus_inf);
        top = max(top, x[j]);
    }
    const float before = row.max, after = std::max(before, hmax(top));
    float factor = 1.0f;
    F32x16 sum = F32x16::load(row.sum);
    row.max = after;
    // Before the first block, the sums are zero.
    if (after != before && before != std::numeric_limits<float>::lowest()) {
        const F32x16 f = exp2(F32x16::set1(before - after));
        f.store(row.sum);
        factor = row.sum[0];
        sum = sum * f;
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
// for R rows and N vectors of dimensions. Rows of acc are `dim` floats apart, rows of p kKeyBlock.
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
    if constexpr (wide > 2) {
        for (; at + 32 <= dim; at += 32) add_values<R, 2>(p, factor, values, first, last, dim, at, acc);
    }
    if constexpr (wide > 1) {
        for (; at < dim; at += 16) add_values<R, 1>(p, factor, values, first, last, dim, at, acc);
    }
}

// ---- merging

// Merges the state and values of a split into the total of the splits before it.
inline void fold(RowState& total, float* total_acc, const RowState& part, const float* part_acc, int dim) {
    const float top = std::max(total.max, part.max);
    const F32x16 a = exp2(F32x16::set1(total.max - top)), b = exp2(F32x16::set1(part.max - top));
    total.max = top;
    fma(F32x16::load(part.sum), b, F32x16::load(total.sum) * a).store(total.sum);
    for (int i = 0; i < dim; i += 16)
        fma(F32x16::load(part_acc + i), b, F32x16::load(total_acc + i) * a).store(total_acc + i);
}

// Divides `acc` by the sum. A sink is a logit (an exponent of 2) without a value; if there is one, its
// exponential is added to the sum first.
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
