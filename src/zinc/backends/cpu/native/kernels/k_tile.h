// Template of the formats with blocks of 256 values: one f16 scale, and sub-blocks of 32 or 16 values with
// small integer scales.
//
//   w = d * scale[sub] * (u - offset)         or         w = d * scale[sub] * u - dmin * min[sub]
//   y += dx * (d * sum_sub(scale * u.x) - dmin * sum_sub(min * sum x))
//
// Sums over sub-blocks are integers and therefore exact. An offset is a minimum of offset * scale, which is
// added to the first sum. A format is a snippet (k_formats.cpp, iq_formats.cpp) that reads one block of the
// file and gives the number of bits of each plane.
//
// Block of a tile:   scale pairs int8 [subs / 2][16 rows][2] | min pairs, if any | four chunks of Quants
//
// Scales and minimums are stored in pairs of sub-blocks because the 16-bit dot product multiplies a pair of
// minimums with a pair of sums of x.
#pragma once

#include "gemm.h"
#include "planes.h"
#include "weights.h"

namespace zinc::ZINC_LEVEL::k_tile {

// Storage of the integer scales of sub-blocks: none, one byte each, or four bits that share a byte with a
// minimum.
enum class Scales { none, bytes, nibbles };

// One block of one row, decoded from the file.
struct Source {
    uint8_t u[256];
    int8_t scale[16], min[16];
    uint16_t d, dmin;
};

// Sizes and fields of the block of a format in a tile. The snippet F of a format defines
//
//   kName             name of the type in GGUF
//   kSourceBytes      bytes of a block of the file
//   read              (block, source), or (block, codebook, source) if there are kCodebook bytes of points
//   kSub              values of a sub-block
//   kLow, kHigh       bits of a value in the low and the high plane
//   kScales           storage of the scales
//   kMins, kOffset    whether there are minimums; otherwise the offset of the stored values
//
// and, if needed,
//
//   kTable, kDotBits  table of values and their width (planes.h)
//   kFactor           constant factor of d
//   scale, offset     factors of u and of -1 for a stored scale
//   kMaxScale         the largest scale, for sums in floats (`few`)
template <class F>
struct Tile {
    using Chunk = Quants<F::kLow, F::kHigh, 16>;
    using Dot = Dot4<dot_bits<F>()>;
    static constexpr int kSubs = 256 / F::kSub, kPairs = kSubs / 2;
    static constexpr bool kSigned = dot_bits<F>() == 8 && F::kOffset == 0;  // u is an int8
    static constexpr int kScaleBytes = F::kScales == Scales::none ? 0 : kSubs * 16;
    static constexpr int kMinBytes = F::kMins && F::kScales == Scales::bytes ? kScaleBytes : 0;
    static constexpr int kChunks = kScaleBytes + kMinBytes;  // offset of the chunks
    static constexpr int kBlockBytes = kChunks + 4 * Chunk::kBytes;
    static_assert(kBlockBytes % 64 == 0);

    static TileHead head(int64_t cols) { return TileHead(cols / 256); }
    static int64_t blocks_at(const TileHead& head) { return head.part * (F::kMins ? 2 : 1); }
    static int64_t bytes(int64_t cols) {
        const TileHead h = head(cols);
        return blocks_at(h) + h.blocks * kBlockBytes;
    }

    template <int g>
    static U8x64 get(const std::byte* chunk) {
        return lookup_values<F>(Chunk::template get<g>(chunk));
    }
    static F32x16 d(const TileHead& head, const std::byte* tile, int64_t block) {
        if constexpr (requires { F::kFactor; }) return head.d(tile, block) * F32x16::set1(F::kFactor);
        return head.d(tile, block);
    }
    static I16x32 stored(const std::byte* block, int pair) {
        if constexpr (F::kScales == Scales::none) return I16x32::set1(1);
        return I16x32::widen(reinterpret_cast<const int8_t*>(block) + pair * 32);
    }
    static I16x32 scales(const std::byte* block, int pair) {
        const I16x32 s = stored(block, pair);
        if constexpr (F::kScales == Scales::nibbles) return s & 15;
        if constexpr (requires { F::scale(s); }) return F::scale(s);
        return s;
    }
    // Factors of the sums of x in the product: the minimums of units, or -offset * scale without minimums.
    static I16x32 mins(const std::byte* block, int pair) {
        const I16x32 s = stored(block, pair);
        if constexpr (F::kScales == Scales::nibbles) return shr<4>(s) & 15;
        if constexpr (F::kMins)
            return I16x32::widen(reinterpret_cast<const int8_t*>(block) + kScaleBytes + pair * 32);
        if constexpr (requires { F::offset(s); }) return -F::offset(s);
        return s * static_cast<int16_t>(-F::kOffset);
    }
};

template <class F>
void pack(const std::byte* const* rows, int64_t cols, const uint8_t* codebook, std::byte* tile) {
    using T = Tile<F>;
    const TileHead head = T::head(cols);
    std::memset(tile, 0, static_cast<size_t>(T::bytes(cols)));
    std::byte* block = tile + T::blocks_at(head);
    for (int64_t b = 0; b < head.blocks; ++b, block += T::kBlockBytes) {
        for (int row = 0; row < kTileRows; ++row) {
            if (!rows[row]) continue;
            const auto* from = reinterpret_cast<const uint8_t*>(rows[row]) + b * F::kSourceBytes;
            Source s;
            if constexpr (requires { F::read(from, s); }) {
                F::read(from, s);
            } else {
                F::read(from, codebook, s);
            }
            head.put(tile, false, b, row, s.d);
            if constexpr (F::kMins) head.put(tile, true, b, row, s.dmin);
            for (int i = 0; F::kScales != Scales::none && i < T::kSubs; ++i) {
                std::byte* at = block + (i / 2 * 16 + row) * 2 + i % 2;
                const int scale = s.scale[i];
                *at = static_cast<std::byte>(F::kScales == Scales::nibbles ? scale | s.min[i] << 4 : scale);
                if constexpr (T::kMinBytes > 0) at[T::kScaleBytes] = static_cast<std::byte>(s.min[i]);
            }
            for (int chunk = 0; chunk < 4; ++chunk)
                for (int g = 0; g < 16; ++g)
                    T::Chunk::put(block + T::kChunks + chunk * T::Chunk::kBytes, g, row,
                                  s.u + chunk * 64 + g * 4);
        }
    }
}

struct Panel {  // one block of 16 rows
    alignas(64) uint8_t u[kPanel / 4][64];
    int32_t scale[16][16];  // [sub-block][row]
    int16_t min[8][32];     // [pair of sub-blocks][row][2]
    float d[16], dmin[16];
};

template <class F>
void unpack(const std::byte* tile, const TileHead& head, int64_t b, Panel& panel) {
    using T = Tile<F>;
    const std::byte* block = tile + T::blocks_at(head) + b * T::kBlockBytes;
    T::d(head, tile, b).store(panel.d);
    if constexpr (F::kMins) head.m(tile, b).store(panel.dmin);
    for (int pair = 0; pair < T::kPairs; ++pair) {
        const I16x32 s = T::scales(block, pair);
        s.even().store(panel.scale[2 * pair]);
        s.odd().store(panel.scale[2 * pair + 1]);
        T::mins(block, pair).store(panel.min[pair]);
    }
    for (int c = 0; c < 4; ++c) {
        const std::byte* chunk = block + T::kChunks + c * T::Chunk::kBytes;
        unroll<16>([&](auto g) { T::template get<g>(chunk).store(panel.u[c * 16 + g]); });
    }
}

template <class F>
void decode(const std::byte* tile, int64_t cols, int lane, float* out) {
    using T = Tile<F>;
    const TileHead head = T::head(cols);
    Panel p;
    for (int64_t b = 0; b < head.blocks; ++b) {
        unpack<F>(tile, head, b, p);
        for (int k = 0; k < 256; ++k, ++out) {
            const int sub = k / F::kSub, min = p.min[sub / 2][lane * 2 + sub % 2];
            const uint8_t u = p.u[k / 4][lane * 4 + k % 4];
            const int product = p.scale[sub][lane] * (T::kSigned ? static_cast<int8_t>(u) : u);
            if constexpr (F::kMins) {
                *out = p.d[lane] * static_cast<float>(product) - p.dmin[lane] * static_cast<float>(min);
            } else {
                *out = p.d[lane] * static_cast<float>(product + min);
            }
        }
    }
}

// The float operations of a block, in the order that all code paths share.
template <bool kMins>
[[gnu::always_inline]] inline F32x16 add_block(F32x16 acc, F32x16 d, F32x16 dmin, F32x16 sum, I32x16 mins,
                                               float dx) {
    F32x16 value = d * sum;
    if constexpr (kMins) value = fma(F32x16::zero() - dmin, to_f32(mins), value);
    return fma(F32x16::set1(dx), value, acc);
}

template <class Dot, int kSub, bool kMins, int kTiles, int kRows>
void micro(const Panel* panels, StridedRows x, const Q8Row& row, int64_t b, float* out) {
    const int8_t* q[kRows];
    const std::byte* sums[kRows];
    repeat<kRows>([&](int t) {
        q[t] = reinterpret_cast<const int8_t*>(x[t]) + b * 256;
        sums[t] = x[t] + (kSub == 16 ? row.sum16 + b * 32 : row.sum + b * 16);
    });
    I32x16 sum[kTiles][kRows], mins[kTiles][kRows];
    repeat<kTiles>([&](int r) { repeat<kRows>([&](int t) { sum[r][t] = I32x16::zero(); }); });
    for (int sub = 0; sub < 256 / kSub; ++sub) {
        I32x16 p[kTiles][kRows];
        repeat<kTiles>([&](int r) { repeat<kRows>([&](int t) { p[r][t] = I32x16::zero(); }); });
        const auto weights = [&](int r, auto g) { return U8x64::load(panels[r].u[sub * (kSub / 4) + g]); };
        dots<Dot, kSub / 4>(weights, q, sub * kSub, p);
        repeat<kTiles>([&](int r) {
            const I32x16 scale = I32x16::load(panels[r].scale[sub]);
            repeat<kRows>([&](int t) { sum[r][t] = sum[r][t] + p[r][t] * scale; });
        });
    }
    repeat<kTiles>([&](int r) { repeat<kRows>([&](int t) { mins[r][t] = I32x16::zero(); }); });
    for (int pair = 0; pair < 128 / kSub; ++pair) {
        repeat<kTiles>([&](int r) {
            const I16x32 m = I16x32::load(panels[r].min[pair]);
            repeat<kRows>([&](int t) { mins[r][t] = dot2(mins[r][t], m, load32(sums[t] + pair * 4)); });
        });
    }
    Sums<kTiles, kRows> acc;
    acc.load(out, b == 0);
    repeat<kTiles>([&](int r) {
        const F32x16 d = F32x16::load(panels[r].d), dmin = F32x16::load(panels[r].dmin);
        repeat<kRows>([&](int t) {
            const float dx = load_float(x[t] + row.d + b * 4);
            if constexpr (!kMins) sum[r][t] = sum[r][t] + mins[r][t];
            acc.v[r][t] = add_block<kMins>(acc.v[r][t], d, dmin, to_f32(sum[r][t]), mins[r][t], dx);
        });
    });
    acc.store(out);
}

// The template arguments are properties of panels, not formats, so that formats share the code.
template <class Dot, int kSub, bool kMins>
[[gnu::noinline]] void multiply(const Panel* panels, const TileMatmul& a, int64_t b, PanelPrefetcher& ahead,
                                RowPrefetcher& upcoming) {
    const Q8Row row(RowFormat::q8_256, a.cols);
    for_blocks(a.n_tiles, a.n, [&]<int kTiles, int kRows>(int tile, int t) {
        ahead.step();
        upcoming.step();
        micro<Dot, kSub, kMins, kTiles, kRows>(panels + tile, a.x + t, row, b,
                                               a.out + t * kOutStride + tile * 16);
    });
}

// Returns whether `few` (the path for few rows) multiplies the sums of sub-blocks by their scales in float
// arithmetic. That takes two operations. Integers take an addition and a product, and Intel processors
// execute an integer product as two operations. The result is the same: sums of half a block are exact in
// floats, and the sum of both halves is rounded like the sum of integers. Values keep their position in the
// byte; a smaller scale makes up for it.
template <class F>
constexpr bool scales_in_floats() {
    if constexpr (kDotsOfBytes && F::kMins && F::kHigh == 0 && requires { F::kMaxScale; }) {
        constexpr int64_t kMax = (1 << F::kLow) - 1;
        static_assert(kMax * 127 * F::kMaxScale * 128 < 1 << 24);
        return true;
    }
    return false;
}

// Multiplies a few rows with one tile. Each block is unpacked in registers and never stored. Sums over
// earlier blocks are kept in `out`, because the sums of the current block need the registers.
template <class F, int kRows>
[[gnu::noinline]] void few(const std::byte* tile, NextTile next, int64_t cols, StridedRows x, float* out) {
    using T = Tile<F>;
    const TileHead head = T::head(cols);
    Prefetcher ahead(tile, T::bytes(cols), next, head.blocks * T::kPairs);
    const Q8Row row(RowFormat::q8_256, cols);
    const int64_t sums = F::kSub == 16 ? row.sum16 : row.sum;
    const std::byte* block = tile + T::blocks_at(head);
    const int8_t* q[kRows];
    repeat<kRows>([&](int t) { q[t] = reinterpret_cast<const int8_t*>(x[t]); });
    repeat<kRows>([&](int t) { F32x16::zero().store(out + t * kOutStride); });
    constexpr bool kFloats = scales_in_floats<F>();
    using Sum = std::conditional_t<kFloats, F32x16, I32x16>;
    for (int64_t b = 0; b < head.blocks; ++b, block += T::kBlockBytes) {
        Sum sum[kRows];
        I32x16 mins[kRows];
        F32x16 half_block[kRows];
        repeat<kRows>([&](int t) { sum[t] = Sum::zero(), mins[t] = I32x16::zero(); });
        constexpr int kChunkPairs = 32 / F::kSub;
        for (int c = 0; c < 4; ++c) {
            if constexpr (kFloats) {
                if (c == 2) repeat<kRows>([&](int t) { half_block[t] = sum[t], sum[t] = Sum::zero(); });
            }
            const std::byte* chunk = block + T::kChunks + c * T::Chunk::kBytes;
            unroll<kChunkPairs>([&](auto i) {
                ahead.step();
                const int pair = c * kChunkPairs + i;
                const I16x32 scale = T::scales(block, pair), min = T::mins(block, pair);
                unroll<2>([&](auto half) {
                    constexpr int first = (i * 2 + half) * (F::kSub / 4);
                    I32x16 dot[1][kRows];
                    repeat<kRows>([&](int t) { dot[0][t] = I32x16::zero(); });
                    const auto weights = [&](int, auto g) {
                        if constexpr (kFloats) return T::Chunk::Low::template raw<first + g>(chunk);
                        return T::template get<first + g>(chunk);
                    };
                    dots<typename T::Dot, F::kSub / 4>(weights, q, b * 256 + c * 64 + first * 4, dot);
                    const I32x16 s = half == 0 ? scale.even() : scale.odd();
                    if constexpr (kFloats) {
                        const F32x16 factor =
                            to_f32(s) * F32x16::set1(1.0f / (1 << T::Chunk::Low::template bit<first>()));
                        repeat<kRows>([&](int t) { sum[t] = fma(to_f32(dot[0][t]), factor, sum[t]); });
                    } else {
                        repeat<kRows>([&](int t) { sum[t] = sum[t] + dot[0][t] * s; });
                    }
                });
                repeat<kRows>([&](int t) {
                    const int32_t two = load32(x[t] + sums + (b * T::kPairs + pair) * 4);
                    if constexpr (F::kMins) mins[t] = dot2(mins[t], min, two);
                    if constexpr (!F::kMins) sum[t] = dot2(sum[t], min, two);
                });
            });
        }
        const F32x16 d = T::d(head, tile, b), dmin = F::kMins ? head.m(tile, b) : F32x16::zero();
        repeat<kRows>([&](int t) {
            float* to = out + t * kOutStride;
            const F32x16 acc = F32x16::load(to);
            F32x16 whole;
            if constexpr (kFloats) whole = half_block[t] + sum[t];
            if constexpr (!kFloats) whole = to_f32(sum[t]);
            add_block<F::kMins>(acc, d, dmin, whole, mins[t], load_float(x[t] + row.d + b * 4)).store(to);
        });
    }
}

// Computes the product if its rows are few; returns whether they are.
template <class F>
bool matmul_few(const TileMatmul& a) {
    return multiply_few(a, Tile<F>::bytes(a.cols),
                        [&]<int kRows>(const std::byte* tile, NextTile next, StridedRows x, float* out) {
                            few<F, kRows>(tile, next, a.cols, x, out);
                        });
}

template <class F>
void matmul(const TileMatmul& a) {
    if (matmul_few<F>(a)) return;
    const TileHead head = Tile<F>::head(a.cols);
    const int64_t n_steps = head.blocks * register_blocks(a);
    PanelPrefetcher ahead(a, Tile<F>::bytes(a.cols), n_steps);
    RowPrefetcher upcoming(a, n_steps);
    Panel panels[2];
    for (int64_t b = 0; b < head.blocks; ++b) {
        for (int r = 0; r < a.n_tiles; ++r) unpack<F>(a.tile[r], head, b, panels[r]);
        multiply<typename Tile<F>::Dot, F::kSub, F::kMins>(panels, a, b, ahead, upcoming);
    }
}

template <class F>
constexpr int codebook_bytes() {
    if constexpr (requires { F::kCodebook; }) return F::kCodebook;
    return 0;
}

template <class F>
constexpr WeightFormat kFormat{F::kName,        RowFormat::q8_256,   256,
                               F::kSourceBytes, codebook_bytes<F>(), Tile<F>::bytes,
                               pack<F>,         decode<F>,           matmul<F>};

}  // namespace zinc::ZINC_LEVEL::k_tile
