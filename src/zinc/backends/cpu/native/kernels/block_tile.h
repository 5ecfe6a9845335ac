// Template of the formats with blocks of 32 values: one float scale per 32 or 16 values and, in some formats,
// one f16 minimum per block.
//
//   w = d * (u - offset)     or     w = d * u + m         (u may be an index into a table of sixteen)
//   y += (d * dx) * (u.x - offset * sum x);  y += m * (dx * sum x)
//
// A format is a snippet in block_formats.cpp that reads one block of the file. Blocks of more than 32 values
// are divided into parts of 32.
//
// Tile:   TileHead (d, m of all blocks) | for each block one chunk of Quants for 32 k
#pragma once

#include "gemm.h"
#include "planes.h"
#include "weights.h"

namespace zinc::ZINC_LEVEL::block_tile {

struct Source {
    uint8_t u[32];
    uint16_t d[2], m;  // the second scale is that of the last sixteen values, if they have one
};

template <class F>
struct BlockTile {
    using Chunk = Quants<F::kLow, F::kHigh, 8>;
    using Head = typename HeadOf<F>::type;
    static constexpr int kDotBits = dot_bits<F>();
    using Dot = Dot4<kDotBits>;
    // Number of values that share a scale, and of parts of 32 values in a block of the file.
    static constexpr int kSub = [] {
        if constexpr (requires { F::kSub; }) return F::kSub;
        return 32;
    }();
    static constexpr int kParts = [] {
        if constexpr (requires { F::kParts; }) return F::kParts;
        return 1;
    }();
    static constexpr int kSubs = 32 / kSub;
    // Whether the bytes of a chunk are the values.
    static constexpr bool kBytes = F::kLow == 8 && F::kHigh == 0 && !requires { F::kTable; };
    static_assert(!F::kMins || kSubs == 1);

    int64_t blocks;
    Head head;
    explicit BlockTile(int64_t cols) : blocks(cols / 32), head(cols / kSub) {}
    template <int g>
    static U8x64 get(const std::byte* chunk) {
        return lookup_values<F>(Chunk::template get<g>(chunk));
    }
    int64_t blocks_at() const { return head.part * (F::kMins ? 2 : 1); }
    int64_t bytes() const { return blocks_at() + blocks * Chunk::kBytes; }
    static int64_t bytes_of(int64_t cols) { return BlockTile(cols).bytes(); }
};

template <class F>
void pack(const std::byte* const* rows, int64_t cols, const uint8_t*, std::byte* tile) {
    using T = BlockTile<F>;
    const T t(cols);
    std::memset(tile, 0, static_cast<size_t>(t.bytes()));
    std::byte* chunk = tile + t.blocks_at();
    for (int64_t b = 0; b < t.blocks; ++b, chunk += T::Chunk::kBytes) {
        for (int row = 0; row < kTileRows; ++row) {
            if (!rows[row]) continue;
            const auto* from = reinterpret_cast<const uint8_t*>(rows[row]) + b / T::kParts * F::kSourceBytes;
            Source s;
            if constexpr (T::kParts == 1) {
                F::read(from, s);
            } else {
                F::read(from, static_cast<int>(b % T::kParts), s);
            }
            for (int sub = 0; sub < T::kSubs; ++sub)
                t.head.put(tile, false, b * T::kSubs + sub, row, s.d[sub]);
            if constexpr (F::kMins) t.head.put(tile, true, b, row, s.m);
            for (int g = 0; g < 8; ++g) T::Chunk::put(chunk, g, row, s.u + g * 4);
        }
    }
}

// Most blocks in a panel. The sums are stored and loaded again after each panel; two panels of this length
// take half of a 32 KiB L1 cache.
inline constexpr int kPanelBlocks = 16;

struct Panel {  // of 16 rows
    alignas(64) uint8_t u[kPanelBlocks * 8][64];
    float d[kPanelBlocks * 2][16], m[kPanelBlocks][16];  // d: by sub-block
};

// Unpacks blocks [first, first + n_blocks) into a panel. kLess is subtracted from the values.
template <class F, int kLess = 0>
void unpack(const std::byte* tile, const BlockTile<F>& t, int64_t first, int n_blocks, Panel& panel) {
    using T = BlockTile<F>;
    for (int b = 0; b < n_blocks; ++b) {
        const std::byte* chunk = tile + t.blocks_at() + (first + b) * T::Chunk::kBytes;
        for (int sub = 0; sub < T::kSubs; ++sub)
            t.head.d(tile, (first + b) * T::kSubs + sub).store(panel.d[b * T::kSubs + sub]);
        if constexpr (F::kMins) t.head.m(tile, first + b).store(panel.m[b]);
        unroll<8>([&](auto g) {
            auto u = T::template get<g>(chunk);
            if constexpr (kLess != 0) u = u - decltype(u)::set1(kLess);
            u.store(panel.u[b * 8 + g]);
        });
    }
}

template <class F>
void decode(const std::byte* tile, int64_t cols, int lane, float* out) {
    using T = BlockTile<F>;
    const T t(cols);
    const std::byte* chunk = tile + t.blocks_at();
    for (int64_t b = 0; b < t.blocks; ++b, chunk += T::Chunk::kBytes, out += 32) {
        uint8_t u[32];
        int8_t values[32];
        unroll<8>([&](auto g) {
            uint8_t group[64];
            const void* four = group + lane * 4;
            if constexpr (T::kBytes) {
                four = chunk + g * 64 + lane * 4;
            } else {
                T::template get<g>(chunk).store(group);
            }
            std::memcpy(u + g * 4, four, 4);
        });
        for (int i = 0; i < 32; ++i) values[i] = static_cast<int8_t>(u[i] - F::kOffset);
        for (int half = 0; half < 2; ++half) {
            float lanes[16];
            t.head.d(tile, b * T::kSubs + half * T::kSubs / 2).store(lanes);
            F32x16 v = F32x16::set1(lanes[lane]) * F32x16::load_i8(values + half * 16);
            if constexpr (F::kMins) {
                t.head.m(tile, b).store(lanes);
                v = v + F32x16::set1(lanes[lane]);
            }
            v.store(out + half * 16);
        }
    }
}

// The contribution of the offset to the dot product of a sub-block. `sums` are the two sums of sixteen q of
// the block.
template <int kSub>
[[gnu::always_inline]] inline int32_t offset_part(int offset, const std::byte* sums, int sub) {
    int16_t pair[2];
    std::memcpy(pair, sums, 4);
    return -offset * (kSub == 32 ? pair[0] + pair[1] : pair[sub]);
}

// The float operations of a sub-block, in the order that all code paths share.
template <bool kMins>
[[gnu::always_inline]] inline F32x16 add_block(F32x16 acc, F32x16 d, F32x16 m, I32x16 dot, float dx,
                                               float s) {
    acc = fma(d * F32x16::set1(dx), to_f32(dot), acc);
    if constexpr (kMins) acc = fma(m, F32x16::set1(s), acc);
    return acc;
}

template <class Dot, int kSub, bool kMins, int kTiles, int kRows>
void micro(const Panel* panels, int n_blocks, int offset, StridedRows x, const Q8Row& row, int64_t first,
           float* out) {
    constexpr int kSubs = 32 / kSub, kGroups = kSub / 4;
    const int8_t* q[kRows];
    const std::byte* tail[kRows];
    repeat<kRows>([&](int t) {
        q[t] = reinterpret_cast<const int8_t*>(x[t]) + first * 32;
        tail[t] = x[t] + first * 4;
    });
    Sums<kTiles, kRows> acc;
    acc.load(out, first == 0);
    for (int b = 0; b < n_blocks; ++b) {
        unroll<kSubs>([&](auto sub) __attribute__((always_inline)) {
            I32x16 dot[kTiles][kRows];
            repeat<kRows>([&](int t) {
                const I32x16 start = I32x16::set1(offset_part<kSub>(offset, tail[t] + row.sum + b * 4, sub));
                repeat<kTiles>([&](int r) { dot[r][t] = start; });
            });
            const auto weights = [&](int r, auto g) {
                return U8x64::load(panels[r].u[b * 8 + sub * kGroups + g]);
            };
            dots<Dot, kGroups>(weights, q, b * 32 + sub * kSub, dot);
            repeat<kTiles>([&](int r) {
                const F32x16 d = F32x16::load(panels[r].d[b * kSubs + sub]), m = F32x16::load(panels[r].m[b]);
                repeat<kRows>([&](int t) {
                    const float dx = load_float(tail[t] + row.d + b * 4);
                    const float s = load_float(tail[t] + row.s + b * 4);
                    acc.v[r][t] = add_block<kMins>(acc.v[r][t], d, m, dot[r][t], dx, s);
                });
            });
        });
    }
    acc.store(out);
}

template <class Dot, int kSub, bool kMins>
[[gnu::noinline]] void multiply(const Panel* panels, int n_blocks, int offset, const TileMatmul& a,
                                int64_t first, PanelPrefetcher& ahead) {
    const Q8Row row(RowFormat::q8_32, a.cols);
    for_blocks(a.n_tiles, a.n, [&]<int kTiles, int kRows>(int tile, int t) {
        ahead.step();
        micro<Dot, kSub, kMins, kTiles, kRows>(panels + tile, n_blocks, offset, a.x + t, row, first,
                                               a.out + t * kOutStride + tile * 16);
    });
}

// Contributions of the offset to the dot products of sixteen blocks of a row, by sub-block. They are computed
// as vectors, because scalar arithmetic would take longer than the products.
template <int kSubs>
struct OffsetParts {
    alignas(64) int32_t v[kSubs][16];

    // `sums` points at the sums of a multiple of sixteen blocks. The padding of the row completes the last
    // sixteen.
    void set(int offset, const std::byte* sums) {
        const I16x32 pairs = I16x32::load(sums);
        if constexpr (kSubs == 1) {
            const uint32_t factor = static_cast<uint16_t>(-offset);
            dot2(I32x16::zero(), pairs, static_cast<int32_t>(factor | factor << 16)).store(v[0]);
        } else {
            (pairs.even() * I32x16::set1(-offset)).store(v[0]);
            (pairs.odd() * I32x16::set1(-offset)).store(v[1]);
        }
    }
};

// Multiplies a few rows with one tile. Each block is unpacked in registers and never stored.
template <class F, int kRows>
[[gnu::noinline]] void few(const std::byte* tile, NextTile next, int64_t cols, StridedRows x, float* out) {
    using T = BlockTile<F>;
    constexpr int kGroups = T::kSub / 4;
    const T tiles(cols);
    Prefetcher ahead(tile, tiles.bytes(), next, tiles.blocks);
    const Q8Row row(RowFormat::q8_32, cols);
    const std::byte* chunk = tile + tiles.blocks_at();
    const int8_t* q[kRows];
    repeat<kRows>([&](int t) { q[t] = reinterpret_cast<const int8_t*>(x[t]); });
    F32x16 acc[kRows];
    repeat<kRows>([&](int t) { acc[t] = F32x16::zero(); });
    constexpr bool kTogether = kRows > 3;
    OffsetParts<T::kSubs> offsets[kTogether ? kRows : 1];
    for (int64_t b = 0; b < tiles.blocks; ++b, chunk += T::Chunk::kBytes) {
        ahead.step();
        if (kTogether && b % 16 == 0)
            repeat<kRows>([&](int t) { offsets[t].set(F::kOffset, x[t] + row.sum + b * 4); });
        unroll<T::kSubs>([&](auto sub) __attribute__((always_inline)) {
            I32x16 dot[1][kRows];
            repeat<kRows>([&](int t) {
                const std::byte* sums = x[t] + row.sum + b * 4;
                dot[0][t] = I32x16::set1(kTogether ? offsets[t].v[sub][b % 16]
                                                   : offset_part<T::kSub>(F::kOffset, sums, sub));
            });
            const auto weights = [&](int, auto g) { return T::template get<sub * kGroups + g>(chunk); };
            dots<typename T::Dot, kGroups>(weights, q, b * 32 + sub * T::kSub, dot);
            const F32x16 d = tiles.head.d(tile, b * T::kSubs + sub);
            F32x16 m = F32x16::zero();
            if constexpr (F::kMins) m = tiles.head.m(tile, b);
            repeat<kRows>([&](int t) {
                acc[t] = add_block<F::kMins>(acc[t], d, m, dot[0][t], load_float(x[t] + row.d + b * 4),
                                             load_float(x[t] + row.s + b * 4));
            });
        });
    }
    repeat<kRows>([&](int t) { acc[t].store(out + t * kOutStride); });
}

// Computes the product if its rows are few; returns whether they are.
template <class F>
bool matmul_few(const TileMatmul& a) {
    return multiply_few(a, BlockTile<F>::bytes_of(a.cols),
                        [&]<int kRows>(const std::byte* tile, NextTile next, StridedRows x, float* out) {
                            few<F, kRows>(tile, next, a.cols, x, out);
                        });
}

template <class F>
void matmul(const TileMatmul& a) {
    if (matmul_few<F>(a)) return;
    using T = BlockTile<F>;
    const T tiles(a.cols);
    const int64_t n_panels = (tiles.blocks + kPanelBlocks - 1) / kPanelBlocks;
    PanelPrefetcher ahead(a, tiles.bytes(), n_panels * register_blocks(a));
    Panel panels[2];
    for (int64_t panel = 0, b = 0; panel < n_panels; ++panel) {
        const int n = static_cast<int>((tiles.blocks - b) / (n_panels - panel));
        for (int r = 0; r < a.n_tiles; ++r) unpack<F>(a.tile[r], tiles, b, n, panels[r]);
        multiply<typename T::Dot, T::kSub, F::kMins>(panels, n, F::kOffset, a, b, ahead);
        b += n;
    }
}

template <class F>
constexpr WeightFormat kFormat{F::kName,
                               RowFormat::q8_32,
                               32 * BlockTile<F>::kParts,
                               F::kSourceBytes,
                               0,
                               BlockTile<F>::bytes_of,
                               pack<F>,
                               decode<F>,
                               matmul<F>};
}  // namespace zinc::ZINC_LEVEL::block_tile
