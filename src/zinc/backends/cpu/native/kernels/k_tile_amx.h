// Products of the formats with blocks of 256 (k_tile.h) in the tile registers of AMX.
//
// Values are multiplied with the scale of their sub-block when they are unpacked, so the sum of a whole block
// is an integer in a register. Consecutive AMX instructions take up to four times as long while the other
// hardware thread of the core is busy, so vector instructions are placed between them (dev/kernels has the
// cost of both).
#pragma once

#include "amx.h"
#include "k_tile.h"

#if defined(ZINC_HAS_AMX)

namespace zinc::ZINC_LEVEL::k_tile {

// One block of 16 rows, each value multiplied with its scale. A scaled value needs more than a byte, so it is
// split in two parts, low + high * 2^kShift: formats with minimums split the scale, other formats the
// product.
template <bool kMins>
struct ScaledPanel {
    static constexpr int kShift = kMins ? 3 : 7;
    static constexpr bool kSigned = !kMins;
    alignas(64) uint8_t low[kPanel / 4][64], high[kPanel / 4][64];
    int16_t min[8][32];
    float d[16], dmin[16];
};

template <class F>
void unpack(const std::byte* tile, const TileHead& head, int64_t b, ScaledPanel<F::kMins>& panel) {
    using T = Tile<F>;
    static_assert(!F::kMins || F::kLow + F::kHigh <= 5, "a part of a product is a byte");
    const std::byte* block = tile + T::blocks_at(head) + b * T::kBlockBytes;
    T::d(head, tile, b).store(panel.d);
    if constexpr (F::kMins) head.m(tile, b).store(panel.dmin);
    constexpr int kShift = ScaledPanel<F::kMins>::kShift, kChunkPairs = 32 / F::kSub;
    for (int c = 0; c < 4; ++c) {
        const std::byte* chunk = block + T::kChunks + c * T::Chunk::kBytes;
        unroll<kChunkPairs>([&](auto i) {
            const int pair = c * kChunkPairs + i;
            const I16x32 scales = T::scales(block, pair), mins = T::mins(block, pair);
            if constexpr (F::kMins) mins.store(panel.min[pair]);
            unroll<2>([&](auto half) {
                const I16x32 s = scales.template twice<half>(), m = mins.template twice<half>();
                const I16x32 low = s & ((1 << kShift) - 1), high = shr<kShift>(s);
                unroll<F::kSub / 4>([&](auto j) {
                    constexpr int g = (i * 2 + half) * (F::kSub / 4) + j;
                    const I16x32 u = words(T::template get<g>(chunk));
                    uint8_t *to_low = panel.low[c * 16 + g], *to_high = panel.high[c * 16 + g];
                    if constexpr (F::kMins) {
                        (u * low).store(to_low);
                        (u * high).store(to_high);
                    } else {
                        const I16x32 even = (u & 255) * s + m, odd = shr<8>(u) * s + m;
                        (odd_bytes(shl<8>(odd), even) & 0x7f7f).store(to_low);
                        odd_bytes(shl<1>(odd), shr<kShift>(even)).store(to_high);
                    }
                });
            });
        });
    }
}

// Multiplies all rows, in groups, with one block of the tiles. While the matrices of a group are multiplied,
// the sums of the previous group are converted to floats. kSub is used by formats with minimums only.
template <int kSub, bool kMins, int kTiles>
[[gnu::noinline]] void multiply(const ScaledPanel<kMins>* panels, const TileMatmul& a, int64_t b,
                                const tmul::RowGroups& groups, PanelPrefetcher& ahead) {
    using Panel = ScaledPanel<kMins>;
    constexpr int kSlices = kPanel / 64, kPairs = kMins ? 128 / kSub : 0;
    const Q8Row row(RowFormat::q8_256, a.cols);
    const StridedRows d = {a.x.data + row.d + b * 4, a.x.stride};
    const StridedRows sums = {a.x.data + (kSub == 16 ? row.sum16 + b * 32 : row.sum + b * 16), a.x.stride};
    tmul::Sums low[2][kTiles], high[2][kTiles];

    if (b == 0)
        for (int t = 0; t < a.n; ++t)
            unroll<kTiles>([&](auto r) { F32x16::zero().store(a.out + t * kOutStride + r * 16); });
    F32x16 scale[kTiles], dmin[kTiles];
    I16x32 min[kTiles][kPairs + 1];
    unroll<kTiles>([&](auto r) __attribute__((always_inline)) {
        scale[r] = F32x16::load(panels[r].d);
        dmin[r] = F32x16::load(panels[r].dmin);
        unroll<kPairs>([&](auto pair) __attribute__((always_inline)) {
            min[r][pair] = I16x32::load(panels[r].min[pair]);
        });
    });
    const int64_t stride = a.x.stride;
    for (int group = 0; group <= groups.count; ++group) {
        const bool has_next = group < groups.count;
        const int first = group > 0 ? groups.repeated(group - 1) : groups.rows, last = groups.rows;
        const int start = groups.start(group - 1), from = (group + 1) % 2;
        if (has_next) unroll<2 * kTiles>([&](auto i) { tmul::zero<i>(); });
        for (int slice = 0; slice < kSlices; ++slice) {
            const std::byte *pairs = sums[start + slice * 4], *factor = d[start + slice * 4];
            float* out = a.out + (start + slice * 4) * kOutStride;
            // Adds the sums of one of the next four rows of the previous group to the output, for one tile.
            const auto finish = [&](auto slot) __attribute__((always_inline)) {
                constexpr int r = slot % kTiles, i = slot / kTiles;
                const int t = slice * 4 + i;
                if (t < first || t >= last) return;
                const I32x16 sum = shl<Panel::kShift>(I32x16::load(high[from][r].row[t])) +
                                   I32x16::load(low[from][r].row[t]);
                I32x16 mins = I32x16::zero();
                unroll<kPairs>([&](auto pair) __attribute__((always_inline)) {
                    mins = dot2(mins, min[r][pair], load32(pairs + i * stride + pair * 4));
                });
                float* to = out + i * kOutStride + r * 16;
                add_block<kMins>(F32x16::load(to), scale[r], dmin[r], to_f32(sum), mins,
                                 load_float(factor + i * stride))
                    .store(to);
            };
            if (has_next) tmul::load<tmul::kX>(a.x[groups.start(group)] + b * kPanel + slice * 64, stride);
            unroll<2 * kTiles>([&](auto j) __attribute__((always_inline)) {
                constexpr int r = j / 2, kW = tmul::kWeights + j % 2;
                if (has_next) tmul::load<kW>((j % 2 ? panels[r].high : panels[r].low)[slice * 16], 64);
                finish(std::integral_constant<int, 2 * j>());
                if (has_next) tmul::multiply<j, tmul::kX, kW, Panel::kSigned>();
                finish(std::integral_constant<int, 2 * j + 1>());
            });
        }
        if (!has_next) break;
        ahead.step();
        unroll<kTiles>([&](auto r) {
            tmul::store<2 * r>(low[group % 2] + r);
            tmul::store<2 * r + 1>(high[group % 2] + r);
        });
    }
}

// A chunk of 64 k of a few rows, for formats without minimums: each byte of x is widened to two bytes. The
// four vectors of a row are the even bytes in the low half, the even bytes in the high half, then the same
// for the odd bytes. Formats with minimums read the bytes of x in place.
struct Spread {
    uint8_t row[4][tmul::kMaxRows][64];
};
inline void spread(StridedRows x, int64_t at, int n, Spread& to) {
    for (int t = 0; t < n; ++t) {
        const I16x32 v = I16x32::load(x[t] + at);
        (v & 255).store(to.row[0][t]);
        shl<8>(v).store(to.row[1][t]);
        shr<8>(v).store(to.row[2][t]);
        (v & -256).store(to.row[3][t]);
    }
}

// Weights of 16 rows and 64 columns, multiplied by their scales. A product needs 16 bits. Formats with
// minimums store it in two parts, as ScaledPanel does; other formats store the 16 bits, even columns in
// part[0] and odd columns in part[1].
struct ScaledChunk {
    alignas(64) uint8_t part[2][16][64];
};
// Unpacks a quarter of such a chunk, vectors kFirst to kFirst + 3.
template <class F, int kFirst>
[[gnu::always_inline]] inline void unpack(const std::byte* block, int c, ScaledChunk& to) {
    using T = Tile<F>;
    static_assert(!T::kSigned);
    constexpr int kShift = ScaledPanel<F::kMins>::kShift, kSub = kFirst * 4 / F::kSub;
    const std::byte* chunk = block + T::kChunks + c * T::Chunk::kBytes;
    const I16x32 s = T::scales(block, c * (32 / F::kSub) + kSub / 2).template twice<kSub % 2>();
    const I16x32 first = F::kMins ? s & ((1 << kShift) - 1) : s & 255;
    const I16x32 second = F::kMins ? shr<kShift>(s) : shl<8>(s);
    unroll<4>([&](auto i) __attribute__((always_inline)) {
        const U8x64 u = T::template get<kFirst + i>(chunk);
        if constexpr (F::kMins) {
            (words(u) * first).store(to.part[0][kFirst + i]);
            (words(u) * second).store(to.part[1][kFirst + i]);
        } else {
            products(u, first).store(to.part[0][kFirst + i]);
            products(u, second).store(to.part[1][kFirst + i]);
        }
    });
}

// Multiplies one tile with at most as many rows as fit in a register. While the matrices of a chunk are
// multiplied, the next chunk is unpacked and the sums of the previous block are converted to floats.
template <class F>
[[gnu::noinline]] void few_in_registers(const std::byte* tile, NextTile next_tile, int64_t cols,
                                        StridedRows x, int n, float* out) {
    using T = Tile<F>;
    constexpr int kShift = F::kMins ? ScaledPanel<true>::kShift : 8;
    const TileHead head = T::head(cols);
    const Q8Row row(RowFormat::q8_256, cols);
    const int64_t n_chunks = head.blocks * 4;
    Prefetcher ahead(tile, T::bytes(cols), next_tile, n_chunks);
    const std::byte* block = tile + T::blocks_at(head);
    ScaledChunk weights[2];
    alignas(64) Spread spread_x[2];
    tmul::Sums low, high;

    // Adds the sums of block b, stored at `block`, to rows [first, last) of the output.
    const auto finish = [&](int64_t b, const std::byte* block, int first,
                            int last) __attribute__((always_inline)) {
        const F32x16 d = T::d(head, tile, b), dmin = F::kMins ? head.m(tile, b) : F32x16::zero();
        I16x32 min[T::kPairs];
        unroll<T::kPairs>([&](auto pair)
                              __attribute__((always_inline)) { min[pair] = T::mins(block, pair); });
        const int64_t pairs = (F::kSub == 16 ? row.sum16 : row.sum) + b * T::kPairs * 4;
        for (int t = first; t < last; ++t) {
            I32x16 sum = shl<kShift>(I32x16::load(high.row[t])) + I32x16::load(low.row[t]);
            I32x16 mins = F::kMins ? I32x16::zero() : sum;
            unroll<T::kPairs>([&](auto pair) __attribute__((always_inline)) {
                mins = dot2(mins, min[pair], load32(x[t] + pairs + pair * 4));
            });
            if constexpr (!F::kMins) sum = mins;
            float* to = out + t * kOutStride;
            const F32x16 acc = b == 0 ? F32x16::zero() : F32x16::load(to);
            add_block<F::kMins>(acc, d, dmin, to_f32(sum), mins, load_float(x[t] + row.d + b * 4)).store(to);
        }
    };
    unroll<4>([&](auto part) { unpack<F, part * 4>(block, 0, weights[0]); });
    if constexpr (!F::kMins) spread(x, 0, n, spread_x[0]);
    for (int64_t b = 0, i = 0; b < head.blocks; ++b, block += T::kBlockBytes) {
        tmul::zero<0>();
        tmul::zero<1>();
        for (int c = 0; c < 4; ++c, ++i) {
            ahead.step();
            const int64_t next =
                i + 1 < n_chunks ? i + 1 : i - 1;  // after the last chunk, one whose result is unused
            const std::byte* next_block = c == 3 && next > i ? block + T::kBlockBytes : block;
            const auto unpack_next = [&](auto part) __attribute__((always_inline)) {
                unpack<F, part * 4>(next_block, static_cast<int>(next % 4), weights[next % 2]);
            };
            const auto& w = weights[i % 2].part;
            if constexpr (F::kMins) {
                tmul::load<tmul::kX>(x.data + i * 64, x.stride);
                unroll<2>([&](auto j) __attribute__((always_inline)) {
                    tmul::load<tmul::kWeights + j>(w[j], 64);
                    unpack_next(std::integral_constant<int, 2 * j>());
                    tmul::multiply<j, tmul::kX, tmul::kWeights + j, false>();
                    unpack_next(std::integral_constant<int, 2 * j + 1>());
                });
            } else {
                const auto& rows = spread_x[i % 2].row;
                unroll<2>([&](auto odd) __attribute__((always_inline)) {
                    tmul::load<tmul::kX>(rows[2 * odd], 64);
                    tmul::load<tmul::kX + 1>(rows[2 * odd + 1], 64);
                    tmul::load<tmul::kWeights + odd>(w[odd], 64);
                    unpack_next(std::integral_constant<int, 2 * odd>());
                    tmul::multiply<0, tmul::kX, tmul::kWeights + odd, false>();
                    unpack_next(std::integral_constant<int, 2 * odd + 1>());
                    tmul::multiply<1, tmul::kX + 1, tmul::kWeights + odd, true>();
                });
                spread(x, next * 64, n, spread_x[next % 2]);
            }
            if (b > 0) finish(b - 1, block - T::kBlockBytes, n * c / 4, n * (c + 1) / 4);
        }
        tmul::store<0>(&low);
        tmul::store<1>(&high);
    }
    finish(head.blocks - 1, block - T::kBlockBytes, 0, n);
}

template <class F>
void matmul_amx(const TileMatmul& a) {
    // Up to kFewRows rows, vector instructions are as fast.
    if (a.n <= kFewRows && matmul_few<F>(a)) return;
    const TileHead head = Tile<F>::head(a.cols);
    const tmul::RowGroups groups(a.n);
    const tmul::Registers registers(groups.rows, 64);
    if (groups.count == 1) {
        for (int r = 0; r < a.n_tiles; ++r)
            few_in_registers<F>(a.tile[r], next_tile(a, r, Tile<F>::bytes(a.cols)), a.cols, a.x, a.n,
                                a.out + r * 16);
        return;
    }
    PanelPrefetcher ahead(a, Tile<F>::bytes(a.cols), head.blocks * groups.count);
    constexpr int kSub = F::kMins ? F::kSub : 0;
    ScaledPanel<F::kMins> panels[2];
    for (int64_t b = 0; b < head.blocks; ++b) {
        for (int r = 0; r < a.n_tiles; ++r) unpack<F>(a.tile[r], head, b, panels[r]);
        if (a.n_tiles == 2) {
            multiply<kSub, F::kMins, 2>(panels, a, b, groups, ahead);
        } else {
            multiply<kSub, F::kMins, 1>(panels, a, b, groups, ahead);
        }
    }
}

template <class F>
constexpr WeightFormat kFormatAmx = tmul::with(kFormat<F>, matmul_amx<F>);

}  // namespace zinc::ZINC_LEVEL::k_tile

#endif

namespace zinc::ZINC_LEVEL::k_tile {

// The formats of the snippets F, for processors without and with AMX.
template <class... F>
struct FormatsOf {
    static constexpr WeightFormat plain[] = {kFormat<F>...};
#if defined(ZINC_HAS_AMX)
    static constexpr WeightFormat amx[] = {kFormatAmx<F>...};
#endif
};

}  // namespace zinc::ZINC_LEVEL::k_tile
