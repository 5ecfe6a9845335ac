// What the matrix products of all formats share.
//
// A product of one or two tiles with n activation rows has two ways. With few rows (decode, speculation,
// small batches) weights are unpacked in registers, for up to kFewRows rows at once. With many, a format
// unpacks a panel of k to bytes (or floats) and the rows stream past it, a register block of kTileBlock tiles
// x kTokenBlock rows at a time, while it is in the first-level cache. Both do the same float operations in
// the same order; what they sum in between are integers, which are exact in any order. So a row's result does
// not depend on its company.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../kernel.h"
#include "../q8row.h"
#include "../simd.h"
#include "../unroll.h"

namespace zinc::ZINC_LEVEL {

inline constexpr int kPanel = 256;  // k of a panel of integers

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

// Cuts the rows into register blocks of nearly equal size: micro.operator()<tiles, rows>(first tile, first
// row).
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

// What is read after a tile, and whether their lines are asked for with pages in turn: if that or what soon
// follows lies behind it in memory, and rows are so few that reading is what takes the time.
struct Following {
    const std::byte* tile;
    bool in_turn;
};
// Of tile r, in a product that takes one tile after the other.
inline Following following(const TileMatmul& a, int r, int64_t bytes) {
    const bool reads_on = !a.next[r] || (a.next[r] > a.tile[r] && a.next[r] <= a.tile[r] + 2 * bytes);
    return {r + 1 < a.n_tiles ? a.tile[r + 1] : a.next[0], wants_pages_in_turn && reads_on && a.n < 4};
}

// Asks for weights some way ahead of their use, on into the tile that will be read after this one: the
// hardware's prefetcher starts anew at every jump between tiles. A first-level cache of 32 KiB would lose the
// rows of x to what is asked for, so there it goes into the second (dev/kernels has what both cost).
class Ahead {
public:
    Ahead(const std::byte* tile, int64_t bytes, Following next, int64_t n_steps)
        : tile_(tile),
          next_((next.tile ? next.tile : tile + bytes) - bytes),
          in_turn_(next.in_turn),
          bytes_(bytes),
          step_(bytes / n_steps),
          at_(in_turn_            ? 0
              : bytes < kDistance ? bytes
                                  : kDistance),
          due_(at_) {}
    // One of n_steps equal steps through the tile.
    [[gnu::always_inline]] void step() {
        for (due_ += step_; at_ < due_; at_ += 64) {
            const std::byte* line = in_turn_ ? in_turn<2>(tile_ + at_) : (at_ < bytes_ ? tile_ : next_) + at_;
            if (has_roomy_first_level) {
                __builtin_prefetch(line, 0, 3);
            } else {
                __builtin_prefetch(line, 0, 2);
            }
        }
    }

private:
    static constexpr int64_t kDistance = 8192;
    const std::byte *tile_,
        *next_;  // next_: where the tile would begin for its end to be the next one's beginning
    bool in_turn_;
    int64_t bytes_, step_, at_, due_;
};

// The tiles of a product of many rows, which pass panels of bytes: a step for every register block.
class AheadOfPanels {
public:
    AheadOfPanels(const TileMatmul& a, int64_t bytes, int64_t n_steps)
        : n_tiles_(a.n_tiles), ahead_{of(a, 0, bytes, n_steps), of(a, n_tiles_ - 1, bytes, n_steps)} {}
    void step() {
        for (int r = 0; r < n_tiles_; ++r) ahead_[r].step();
    }

private:
    static Ahead of(const TileMatmul& a, int r, int64_t bytes, int64_t n_steps) {
        return {a.tile[r], bytes, {a.next[r], false}, n_steps};
    }
    int n_tiles_;
    Ahead ahead_[2];
};

// What the caller does next with the rows of such a product, asked for in the last quarter of its steps: all
// at once after it they would be waited for, while memory has little to do beside a product of many rows.
class AheadOfRows {
public:
    AheadOfRows(const TileMatmul& a, int64_t n_steps)
        : a_(a), steps_left_(n_steps), rows_a_step_(static_cast<int>((a.n * 4 + n_steps - 1) / n_steps)) {}
    void step() {
        if (--steps_left_ * rows_a_step_ <= a_.n - row_) bring();
    }

private:
    // Not inlined: the products around step() want the registers.
    [[gnu::noinline]] void bring() {
        for (const int end = row_ + rows_a_step_ < a_.n ? row_ + rows_a_step_ : a_.n; row_ < end; ++row_)
            for (const auto& soon : a_.soon)
                for (int i = 0; i < soon.lines; ++i) __builtin_prefetch(soon.rows[row_] + i * 64, 0, 2);
    }
    const TileMatmul& a_;
    int64_t steps_left_;
    int rows_a_step_, row_ = 0;
};

// Register blocks into which for_blocks cuts the rows and tiles of a product.
inline int register_blocks(const TileMatmul& a) {
    const int row_blocks = (a.n + kTokenBlock - 1) / kTokenBlock;
    return row_blocks * ((a.n_tiles + kTileBlock - 1) / kTileBlock);
}

// Whether n rows are few: two passes over a tile that the first has brought into the cache still beat a
// panel.
inline bool are_few(int n) { return n <= 2 * kFewRows; }

// Cuts few rows into one or two groups: few.operator()<rows>(first row).
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

// The product, if its rows are few, one tile after the other:
// few.operator()<rows>(tile, what is read after it, x, out).
template <class Few>
[[gnu::always_inline]] inline bool multiply_few(const TileMatmul& a, int64_t tile_bytes, Few&& few) {
    if (!are_few(a.n)) return false;
    for (int r = 0; r < a.n_tiles; ++r)
        for_few(a.n, [&]<int kRows>(int t) {
            few.template operator()<kRows>(a.tile[r], following(a, r, tile_bytes), a.x + t,
                                           a.out + t * kOutStride + r * 16);
        });
    return true;
}

// The sums of a register block, kept in TileMatmul::out between panels.
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

// p[tile][row] += u . x over kGroups groups of four k. u(tile, g) gives the weights, q the bytes of each row.
// Every loop is told to be inlined: a call would pass the sums through memory, at half the speed.
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

// A tile begins with the f16 scales of all its blocks, 16 rows each, and the f16 minimums if the format has
// them, so that what follows stays aligned to vectors:   d [nb][16] | m [nb][16] | block [nb]
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

// The head of a format's tiles: one of its own, if it has scales of another kind.
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
