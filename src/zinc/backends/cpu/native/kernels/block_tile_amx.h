// Products of many rows with the formats of block_tile.h in the tile registers of AMX.
#pragma once

#include "amx.h"
#include "block_tile.h"

#if defined(ZINC_HAS_AMX)

namespace zinc::ZINC_LEVEL::block_tile {

// Multiplies all rows, in groups, with a panel. A group is multiplied with every sub-block of the tiles; each
// product is stored kLag turns after it was started, so that several are in flight. Then the sums are
// converted to floats. Values are signed: the panel has them with their offset subtracted.
template <int kSub, bool kMins, int kTiles>
[[gnu::noinline]] void multiply(const Panel* panels, int n_blocks, const TileMatmul& a, int64_t first,
                                const tmul::RowGroups& groups, PanelPrefetcher& ahead) {
    constexpr int kSubs = 32 / kSub, kTurns = 4 / kTiles, kLag = kTurns - 1;
    const Q8Row row(RowFormat::q8_32, a.cols);
    const int n_subs = n_blocks * kSubs;
    tmul::Sums dots[kTiles][8 * kSubs] = {};
    float d[tmul::kMaxRows][8] = {}, s[tmul::kMaxRows][8] = {};  // of the rows of the group, by block
    for (int group = 0; group < groups.count; ++group) {
        ahead.step();
        const int start = groups.start(group);
        const StridedRows x = a.x + start;
        for (int i = 0; i < groups.rows; ++i) {
            std::memcpy(d[i], x[i] + row.d + first * 4, sizeof d[i]);
            if constexpr (kMins) std::memcpy(s[i], x[i] + row.s + first * 4, sizeof s[i]);
        }
        for (int sub = 0; sub < n_subs + kLag; sub += kTurns) {
            unroll<kTurns>([&](auto j) {
                constexpr int kOldest = (j + 1) % kTurns, kX = tmul::kX + j % 2;
                if (sub + j < n_subs) {
                    tmul::load<kX>(x.data + first * 32 + (sub + j) * kSub, x.stride);
                    unroll<kTiles>([&](auto r) {
                        constexpr int kSums = j * kTiles + r, kW = tmul::kWeights + kSums % 2;
                        tmul::zero<kSums>();
                        tmul::load<kW>(panels[r].u[(sub + j) * (kSub / 4)], 64);
                        tmul::multiply<kSums, kX, kW, true>();
                    });
                }
                if (sub + j >= kLag && sub + j < n_subs + kLag)
                    unroll<kTiles>(
                        [&](auto r) { tmul::store<kOldest * kTiles + r>(&dots[r][sub + j - kLag]); });
            });
        }
        for (int r = 0; r < kTiles; ++r) {
            const Panel& panel = panels[r];
            float* out = a.out + start * kOutStride + r * 16;
            F32x16 acc[tmul::kMaxRows];
            unroll<tmul::kMaxRows>([&](auto i) {
                acc[i] = first > 0 && i < groups.rows ? F32x16::load(out + i * kOutStride) : F32x16::zero();
            });
            for (int b = 0; b < n_blocks; ++b) {
                unroll<kSubs>([&](auto sub) {
                    const tmul::Sums& from = dots[r][b * kSubs + sub];
                    const F32x16 scale = F32x16::load(panel.d[b * kSubs + sub]), m = F32x16::load(panel.m[b]);
                    unroll<tmul::kMaxRows>([&](auto i) {
                        acc[i] =
                            add_block<kMins>(acc[i], scale, m, I32x16::load(from.row[i]), d[i][b], s[i][b]);
                    });
                });
            }
            unroll<tmul::kMaxRows>([&](auto i) {
                if (i >= groups.repeated(group) && i < groups.rows) acc[i].store(out + i * kOutStride);
            });
        }
    }
}

template <class F>
void matmul_amx(const TileMatmul& a) {
    if (matmul_few<F>(a)) return;
    using T = BlockTile<F>;
    const T tiles(a.cols);
    const tmul::RowGroups groups(a.n);
    const tmul::Registers registers(groups.rows, T::kSub);
    PanelPrefetcher ahead(a, tiles.bytes(), (tiles.blocks + 7) / 8 * groups.count);
    Panel panels[2];
    for (int64_t b = 0; b < tiles.blocks; b += 8) {
        const int n = static_cast<int>(tiles.blocks - b < 8 ? tiles.blocks - b : 8);
        for (int r = 0; r < a.n_tiles; ++r) unpack<F, F::kOffset>(a.tile[r], tiles, b, n, panels[r]);
        if (a.n_tiles == 2) {
            multiply<T::kSub, F::kMins, 2>(panels, n, a, b, groups, ahead);
        } else {
            multiply<T::kSub, F::kMins, 1>(panels, n, a, b, groups, ahead);
        }
    }
}
template <class F>
constexpr WeightFormat kFormatAmx = tmul::with(kFormat<F>, matmul_amx<F>);

}  // namespace zinc::ZINC_LEVEL::block_tile

#endif

namespace zinc::ZINC_LEVEL::block_tile {

// The formats of the snippets F, for processors without and with AMX.
template <class... F>
struct FormatsOf {
    static constexpr WeightFormat plain[] = {kFormat<F>...};
#if defined(ZINC_HAS_AMX)
    static constexpr WeightFormat amx[] = {kFormatAmx<F>...};
#endif
};

}  // namespace zinc::ZINC_LEVEL::block_tile
