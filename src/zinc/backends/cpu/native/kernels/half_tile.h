// F16 weights multiplied as 15-bit integers, for levels with ZINC_HAS_FAST_DOT2.
//
// In each block of 32 columns, the weights of a row are divided by a power of two that makes the largest of
// them an integer of 14 bits and a sign, and rounded; rows of x are q15_32. A sum of eight products fits in
// 32 bits. A weight of at least an eighth of the largest is exact, and the error of any other is at most
// 2^-15 of the largest. This error and that of x together are smaller than the error of rounding x to f16.
// Tiles keep the f16 values:
//
// clang-format off
//   [32 nb][16 rows] f16 | [nb][16 rows] int8 exponent         nb = ceil(cols / 32)
// clang-format on
#pragma once

#include "../half.h"
#include "gemm.h"

namespace zinc::ZINC_LEVEL::half_tile {

inline constexpr int kBlock = 32, kPairs = kBlock / 2, kBlockBytes = kBlock * kTileRows * 2;
inline constexpr int kSumPairs = 4;     // pairs of products whose sum fits in 32 bits
inline constexpr int kNotFinite = 127;  // exponent of a block with infinity or NaN

struct HalfBlocks {
    int64_t n, exponents, bytes;
    explicit HalfBlocks(int64_t cols)
        : n((cols + kBlock - 1) / kBlock),
          exponents(n * kBlockBytes),
          bytes(exponents + align64(n * kTileRows)) {}
};

inline int64_t tile_bytes(int64_t cols) { return HalfBlocks(cols).bytes; }

// Returns the exponent e of a block of one row: its values are integers of 15 bits times 2^(e + 1), so that
// 2^(kNotFinite + 1) is infinite.
inline int exponent_of(const uint16_t* half, int64_t n) {
    int top = 0;
    for (int64_t k = 0; k < n; ++k) top = std::max(top, half[k] & 0x7fff);
    if (top >= 0x7c00) return kNotFinite;
    return top == 0 ? 0 : std::ilogb(f16_to_f32(static_cast<uint16_t>(top))) - 14;
}

inline void pack(const std::byte* const* rows, int64_t cols, const uint8_t*, std::byte* tile) {
    const HalfBlocks blocks(cols);
    std::memset(tile, 0, static_cast<size_t>(blocks.bytes));
    auto* half = reinterpret_cast<uint16_t*>(tile);
    auto* exponents = reinterpret_cast<int8_t*>(tile + blocks.exponents);
    for (int row = 0; row < kTileRows; ++row) {
        if (!rows[row]) continue;
        for (int64_t b = 0; b < blocks.n; ++b) {
            const int64_t first = b * kBlock, n = std::min<int64_t>(kBlock, cols - first);
            uint16_t values[kBlock];
            std::memcpy(values, rows[row] + first * 2, static_cast<size_t>(n) * 2);
            for (int64_t k = 0; k < n; ++k) half[(first + k) * kTileRows + row] = values[k];
            exponents[b * kTileRows + row] = static_cast<int8_t>(exponent_of(values, n));
        }
    }
}

// The factors of a block: weight = scale * integer.
struct Factors {
    F32x16 scale, inverse;
    Factors(const std::byte* tile, const HalfBlocks& blocks, int64_t block) {
        const auto* exponents = reinterpret_cast<const int8_t*>(tile + blocks.exponents);
        const F32x16 e = F32x16::load_i8(exponents + block * kTileRows);
        scale = ldexp(F32x16::set1(2.0f), e);
        inverse = ldexp(F32x16::set1(0.5f), F32x16::zero() - e);
    }
};

// Returns columns 2 i and 2 i + 1 of a block as integers.
[[gnu::always_inline]] inline I16x32 integers(const std::byte* block, int i, F32x16 inverse) {
    const auto* half = reinterpret_cast<const uint16_t*>(block) + i * 2 * kTileRows;
    return pairs_of(to_i32(F32x16::load_f16(half) * inverse),
                    to_i32(F32x16::load_f16(half + kTileRows) * inverse));
}

// Sums the products of a block for kTiles tiles and kRows rows: adds the integer sums of kSumPairs pairs as
// floats. All code paths share this order. weights(r, i) and pair(t, i) are pairs i of tile r and row t.
template <int kTiles, int kRows, class Weights, class Pair>
[[gnu::always_inline]] inline void dot_block(Weights&& weights, Pair&& pair, F32x16 (&sum)[kTiles][kRows]) {
    unroll<kPairs / kSumPairs>([&](auto group) __attribute__((always_inline)) {
        I32x16 dot[kTiles][kRows];
        repeat<kTiles>([&](int r) { repeat<kRows>([&](int t) { dot[r][t] = I32x16::zero(); }); });
        unroll<kSumPairs>([&](auto at) __attribute__((always_inline)) {
            const int i = group * kSumPairs + at;
            I16x32 w[kTiles];
            repeat<kTiles>([&](int r) { w[r] = weights(r, i); });
            repeat<kRows>([&](int t) {
                const I16x32 two = set1_pair(pair(t, i));
                repeat<kTiles>([&](int r) { dot[r][t] = dot2(dot[r][t], w[r], two); });
            });
        });
        repeat<kTiles>([&](int r) {
            repeat<kRows>([&](int t) {
                const F32x16 part = to_f32(dot[r][t]);
                sum[r][t] = group == 0 ? part : sum[r][t] + part;
            });
        });
    });
}

[[gnu::always_inline]] inline F32x16 add_block(F32x16 acc, F32x16 scale, F32x16 sum, float dx) {
    return fma(scale * F32x16::set1(dx), sum, acc);
}

struct Panel {
    alignas(64) int16_t w[kPanel / 2][32];
    float scale[kPanel / kBlock][16];
};

// Totals are kept in memory, because the sums of a block take all registers.
template <int kTiles, int kRows>
void micro(const Panel* panels, int64_t first, int n, StridedRows x, int64_t scales, float* out) {
    const std::byte* q[kRows];
    const float* dx[kRows];
    repeat<kRows>([&](int t) {
        q[t] = x[t] + first * kBlock * 2;
        dx[t] = reinterpret_cast<const float*>(x[t] + scales) + first;
    });
    for (int b = 0; b < n; ++b) {
        F32x16 sum[kTiles][kRows];
        dot_block<kTiles, kRows>([&](int r, int i) { return I16x32::load(panels[r].w[b * kPairs + i]); },
                                 [&](int t, int i) { return load32(q[t] + (b * kPairs + i) * 4); }, sum);
        const bool starts = first + b == 0;
        repeat<kTiles>([&](int r) {
            const F32x16 scale = F32x16::load(panels[r].scale[b]);
            repeat<kRows>([&](int t) {
                float* total = out + t * kOutStride + r * kTileRows;
                const F32x16 before = starts ? F32x16::zero() : F32x16::load(total);
                add_block(before, scale, sum[r][t], dx[t][b]).store(total);
            });
        });
    }
}

// Multiplies a few rows with one tile. Weights are converted in registers.
template <int kRows>
[[gnu::noinline]] void few(const std::byte* tile, NextTile next, int64_t cols, StridedRows x, float* out) {
    const HalfBlocks blocks(cols);
    Prefetcher ahead(tile, blocks.bytes, next, blocks.n);
    const std::byte* q[kRows];
    const float* dx[kRows];
    F32x16 acc[kRows];
    repeat<kRows>([&](int t) {
        q[t] = x[t];
        dx[t] = reinterpret_cast<const float*>(x[t] + Q15Row(cols).d);
        acc[t] = F32x16::zero();
    });
    for (int64_t b = 0; b < blocks.n; ++b) {
        ahead.step();
        const Factors factors(tile, blocks, b);
        const std::byte* block = tile + b * kBlockBytes;
        F32x16 sum[1][kRows];
        dot_block<1, kRows>([&](int, int i) { return integers(block, i, factors.inverse); },
                            [&](int t, int i) { return load32(q[t] + (b * kPairs + i) * 4); }, sum);
        repeat<kRows>([&](int t) { acc[t] = add_block(acc[t], factors.scale, sum[0][t], dx[t][b]); });
    }
    repeat<kRows>([&](int t) { acc[t].store(out + t * kOutStride); });
}

inline void matmul(const TileMatmul& a) {
    const HalfBlocks blocks(a.cols);
    // A second pass would convert the weights again. Where passes are short, it is still faster than a panel.
    constexpr int kMost = kFewRows < 8 ? 2 * kFewRows : kFewRows;
    if (multiply_few<kMost>(a, blocks.bytes,
                            [&]<int kRows>(const std::byte* tile, NextTile next, StridedRows x, float* out) {
                                few<kRows>(tile, next, a.cols, x, out);
                            }))
        return;
    constexpr int kBlocks = kPanel / kBlock;
    const int64_t scales = Q15Row(a.cols).d;
    PanelPrefetcher ahead(a, blocks.bytes, (blocks.n + kBlocks - 1) / kBlocks * register_blocks(a));
    Panel panels[2];
    for (int64_t first = 0; first < blocks.n; first += kBlocks) {
        const int n = static_cast<int>(std::min<int64_t>(kBlocks, blocks.n - first));
        for (int r = 0; r < a.n_tiles; ++r) {
            for (int b = 0; b < n; ++b) {
                const Factors factors(a.tile[r], blocks, first + b);
                factors.scale.store(panels[r].scale[b]);
                const std::byte* block = a.tile[r] + (first + b) * kBlockBytes;
                for (int i = 0; i < kPairs; ++i)
                    integers(block, i, factors.inverse).store(panels[r].w[b * kPairs + i]);
            }
        }
        for_blocks(a.n_tiles, a.n, [&]<int kTiles, int kRows>(int tile, int t) {
            ahead.step();
            micro<kTiles, kRows>(panels + tile, first, n, a.x + t, scales,
                                 a.out + t * kOutStride + tile * kTileRows);
        });
    }
}

}  // namespace zinc::ZINC_LEVEL::half_tile
