// Helpers of the matrix products of all formats.
//
// The product of one or two tiles with n rows of x has two code paths. With few rows (decode, speculation,
// small batches) weights are unpacked in registers, for up to kFewRows rows at once. With many rows, a format
// unpacks a panel along k to bytes (or floats); while the panel is in the L1 cache, the rows are multiplied
// by it in register blocks of kTileBlock tiles x kTokenBlock rows. Both paths do the same float operations in
// the same order, and the sums in between are integers, which are exact in any order. So the result of a row
// does not depend on the number of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../kernel.h"
#include "../q8row.h"
#include "../simd.h"
#include "../unroll.h"

namespace zinc::ZINC_LEVEL {

inline constexpr int kPanel = 256;  // length of a panel of integers along k

inline int32_t load32(const void* p) {
    int32_t x;
    std::memcpy(&x, p, 4);
    return x;
}
inline uint32_t word_at(const uint8_t* p) {
    uint32_t x;
    std::memcpy(&x, p, 4);
    return x;
}
inline uint16_t half_at(const uint8_t* p) {
    uint16_t x;
    std::memcpy(&x, p, 2);
    return x;
}
inline float load_float(const void* p) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
}

// Divides the rows into register blocks of nearly equal size and calls micro.operator()<tiles, rows>(first
// tile, first row) for each.
template <class Micro>
[[gnu::always_inline]] inline void for_blocks(int n_tiles, int n, Micro&& micro) {
    const int groups = (n + kTokenBlock - 1) / kTokenBlock;
    for (int group = 0, row = 0; group < groups; ++group) {
        const int size = (n - row) / (groups - group);
        for (int tile = 0; tile < n_tiles; tile += kTileBlock) {
            const int tiles = n_tiles - tile < kTileBlock ? n_tiles - tile : kTileBlock;
            unroll<kTileBlock>([&](auto r) {
                if (tiles != r + 1) return;
                unroll<kTokenBlock>([&](auto t) {
                    if (size == t + 1) micro.template operator()<r + 1, t + 1>(tile, row);
                });
            });
        }
        row += size;
    }
}

// The tile that is read after another, and whether prefetches alternate between pages. They do if the next
// tile follows in memory and rows are so few that the product is limited by read bandwidth.
struct NextTile {
    const std::byte* tile;
    bool alternates;
};
// The tile after tile r in a product that reads one tile after the other.
inline NextTile next_tile(const TileMatmul& a, int r, int64_t bytes) {
    const bool reads_on = !a.next[r] || (a.next[r] > a.tile[r] && a.next[r] <= a.tile[r] + 2 * bytes);
    return {r + 1 < a.n_tiles ? a.tile[r + 1] : a.next[0], prefers_alternating_pages && reads_on && a.n < 4};
}

// Prefetches weights some distance ahead of their use, past the end of a tile into the next one: the hardware
// prefetcher restarts at every jump between tiles. With an L1 cache of 32 KiB, prefetches go to L2, because
// they would evict the rows of x (dev/kernels has the rates of both).
class Prefetcher {
public:
    Prefetcher(const std::byte* tile, int64_t bytes, NextTile next, int64_t n_steps)
        : tile_(tile),
          next_((next.tile ? next.tile : tile + bytes) - bytes),
          alternates_(next.alternates),
          bytes_(bytes),
          step_(bytes / n_steps),
          at_(alternates_         ? 0
              : bytes < kDistance ? bytes
                                  : kDistance),
          due_(at_) {}
    // Called once for each of n_steps equal steps through the tile.
    [[gnu::always_inline]] void step() {
        for (due_ += step_; at_ < due_; at_ += 64) {
            const std::byte* line =
                alternates_ ? alternating_line<2>(tile_ + at_) : (at_ < bytes_ ? tile_ : next_) + at_;
            if (has_large_l1) {
                __builtin_prefetch(line, 0, 3);
            } else {
                __builtin_prefetch(line, 0, 2);
            }
        }
    }

private:
    static constexpr int64_t kDistance = 8192;
    const std::byte *tile_,
        *next_;  // next_: the next tile minus the size of a tile, so that offsets continue
    bool alternates_;
    int64_t bytes_, step_, at_, due_;
};

// Prefetches the tiles of a product with panels; step() is called once for each register block.
class PanelPrefetcher {
public:
    PanelPrefetcher(const TileMatmul& a, int64_t bytes, int64_t n_steps)
        : n_tiles_(a.n_tiles), ahead_{of(a, 0, bytes, n_steps), of(a, n_tiles_ - 1, bytes, n_steps)} {}
    void step() {
        for (int r = 0; r < n_tiles_; ++r) ahead_[r].step();
    }

private:
    static Prefetcher of(const TileMatmul& a, int r, int64_t bytes, int64_t n_steps) {
        return {a.tile[r], bytes, {a.next[r], false}, n_steps};
    }
    int n_tiles_;
    Prefetcher ahead_[2];
};

// Prefetches TileMatmul::upcoming during the last quarter of the steps of a product with panels. Such a
// product leaves read bandwidth unused, while after it the caller would wait for all these lines at once.
class RowPrefetcher {
public:
    RowPrefetcher(const TileMatmul& a, int64_t n_steps)
        : a_(a), steps_left_(n_steps), rows_a_step_(static_cast<int>((a.n * 4 + n_steps - 1) / n_steps)) {}
    void step() {
        if (--steps_left_ * rows_a_step_ <= a_.n - row_) prefetch_rows();
    }

private:
    // Not inlined, so that the products around step() keep their registers.
    [[gnu::noinline]] void prefetch_rows() {
        for (const int end = row_ + rows_a_step_ < a_.n ? row_ + rows_a_step_ : a_.n; row_ < end; ++row_)
            for (const auto& upcoming : a_.upcoming)
                for (int i = 0; i < upcoming.lines; ++i)
                    __builtin_prefetch(upcoming.rows[row_] + i * 64, 0, 2);
    }
    const TileMatmul& a_;
    int64_t steps_left_;
    int rows_a_step_, row_ = 0;
};

// Number of register blocks in which for_blocks divides a product.
inline int register_blocks(const TileMatmul& a) {
    const int row_blocks = (a.n + kTokenBlock - 1) / kTokenBlock;
    return row_blocks * ((a.n_tiles + kTileBlock - 1) / kTileBlock);
}

// Divides few rows into one or two groups and calls few.operator()<rows>(first row) for each.
template <class Few>
[[gnu::always_inline]] inline void for_few(int n, Few&& few) {
    const int groups = (n + kFewRows - 1) / kFewRows;
    for (int group = 0, row = 0; group < groups; ++group) {
        const int size = (n - row) / (groups - group);
        unroll<kFewRows>([&](auto t) {
            if (size == t + 1) few.template operator()<t + 1>(row);
        });
        row += size;
    }
}

// Computes the product if its rows are few, one tile after the other, by calls of few.operator()<rows>(tile,
// next tile, x, out). Returns false if there are more than kMost rows. Two passes over a tile are mostly
// faster than a panel, because the first pass leaves the tile in the cache.
template <int kMost = 2 * kFewRows, class Few>
[[gnu::always_inline]] inline bool multiply_few(const TileMatmul& a, int64_t tile_bytes, Few&& few) {
    if (a.n > kMost) return false;
    for (int r = 0; r < a.n_tiles; ++r)
        for_few(a.n, [&]<int kRows>(int t) {
            few.template operator()<kRows>(a.tile[r], next_tile(a, r, tile_bytes), a.x + t,
                                           a.out + t * kOutStride + r * 16);
        });
    return true;
}

// The sums of a register block. Between panels they are stored in TileMatmul::out.
template <int kTiles, int kRows>
struct Sums {
    F32x16 v[kTiles][kRows];
    [[gnu::always_inline]] void load(const float* out, bool first) {
        if (first) {
            repeat<kTiles>([&](int r) { repeat<kRows>([&](int t) { v[r][t] = F32x16::zero(); }); });
        } else {
            repeat<kTiles>([&](int r) {
                repeat<kRows>([&](int t) { v[r][t] = F32x16::load(out + t * kOutStride + r * 16); });
            });
        }
    }
    [[gnu::always_inline]] void store(float* out) const {
        unroll<kTiles>(
            [&](auto r) { repeat<kRows>([&](int t) { v[r][t].store(out + t * kOutStride + r * 16); }); });
    }
};

// p[tile][row] += u . x over kGroups groups of four k. u(tile, g) returns the weights, q has the bytes of
// each row. All loops are force-inlined: a call would pass the sums through memory, at half the speed.
template <class Dot, int kGroups, int kTiles, int kRows, class Weights>
[[gnu::always_inline]] inline void dots(Weights&& u, const int8_t* const (&q)[kRows], int64_t k,
                                        I32x16 (&p)[kTiles][kRows]) {
    constexpr int kRun = Dot::kRun < kGroups ? Dot::kRun : kGroups;
    unroll<kGroups / kRun>([&](auto run) __attribute__((always_inline)) {
        Dot dot[kTiles][kRows];
        unroll<kRun>([&](auto i) __attribute__((always_inline)) {
            constexpr int g = run * kRun + i;
            U8x64 w[kTiles];
            repeat<kTiles>(
                [&](int r) __attribute__((always_inline)) { w[r] = u(r, std::integral_constant<int, g>()); });
            repeat<kRows>([&](int t) __attribute__((always_inline)) {
                const int8_t* four = q[t] + k + 4 * g;
                if constexpr (kTiles == 1 && requires { dot[0][t].add(w[0], four); }) {
                    dot[0][t].add(w[0], four);
                } else {
                    const int32_t x = load32(four);
                    repeat<kTiles>([&](int r) __attribute__((always_inline)) { dot[r][t].add(w[r], x); });
                }
            });
        });
        repeat<kTiles>([&](int r) __attribute__((always_inline)) {
            repeat<kRows>([&](int t)
                              __attribute__((always_inline)) { p[r][t] = p[r][t] + dot[r][t].total(); });
        });
    });
}

// The head of a tile: the f16 scales of all its blocks and 16 rows, then the f16 minimums if the format has
// them. It keeps the blocks that follow aligned to vectors.   d [nb][16] | m [nb][16] | block [nb]
struct TileHead {
    int64_t blocks, part;  // part: bytes of d, and of m
    explicit TileHead(int64_t n_blocks) : blocks(n_blocks), part(align64(n_blocks * 32)) {}
    static const uint16_t* halves(const std::byte* tile, int64_t offset, int64_t block) {
        return reinterpret_cast<const uint16_t*>(tile + offset) + block * 16;
    }
    F32x16 d(const std::byte* tile, int64_t block) const { return F32x16::load_f16(halves(tile, 0, block)); }
    F32x16 m(const std::byte* tile, int64_t block) const {
        return F32x16::load_f16(halves(tile, part, block));
    }
    void put(std::byte* tile, bool second, int64_t block, int row, uint16_t half) const {
        std::memcpy(tile + (second ? part : 0) + (block * 16 + row) * 2, &half, 2);
    }
};

// The head of the tiles of format F: F::Head if the format defines it, else TileHead.
template <class F>
struct HeadOf {
    using type = TileHead;
};
template <class F>
    requires requires { typename F::Head; }
struct HeadOf<F> {
    using type = typename F::Head;
};

}  // namespace zinc::ZINC_LEVEL
