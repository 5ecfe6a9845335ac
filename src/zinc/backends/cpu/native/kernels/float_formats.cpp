// F32, F16 and BF16 weights. Tiles are [k][16 rows], rows of x are f32, and sums are fused multiply-adds in
// order of k. If the machine has a bfloat16 dot product, BF16 tiles are [k / 2][16][2] and rows of x are
// rounded to bfloat16. If it has a fast dot product of 16-bit integers, F16 weights use it (half_tile.h).
#include <algorithm>

#include "../half.h"
#include "gemm.h"
#include "weights.h"
#if defined(ZINC_HAS_FAST_DOT2)
#include "half_tile.h"
#endif

namespace zinc::ZINC_LEVEL {
namespace {

constexpr int kFloatPanel = 128;  // length of a panel along k

struct F32 {
    static constexpr int kBytes = 4;
    static constexpr const char* kName = "F32";
    static F32x16 load(const std::byte* p) { return F32x16::load(reinterpret_cast<const float*>(p)); }
};

struct F16 {
    static constexpr int kBytes = 2;
    static constexpr const char* kName = "F16";
    static F32x16 load(const std::byte* p) { return F32x16::load_f16(reinterpret_cast<const uint16_t*>(p)); }
};

template <class F>
int64_t tile_bytes(int64_t cols) {
    return align64(cols * kTileRows * F::kBytes);
}

template <class F>
void pack(const std::byte* const* rows, int64_t cols, const uint8_t*, std::byte* tile) {
    std::memset(tile, 0, static_cast<size_t>(tile_bytes<F>(cols)));
    for (int row = 0; row < kTileRows; ++row) {
        if (!rows[row]) continue;
        for (int64_t k = 0; k < cols; ++k)
            std::memcpy(tile + (k * kTileRows + row) * F::kBytes, rows[row] + k * F::kBytes, F::kBytes);
    }
}

template <class F>
void decode(const std::byte* tile, int64_t cols, int lane, float* out) {
    constexpr int64_t kBytes = F::kBytes;
    const std::byte* from = tile + lane * kBytes;
    for (int64_t k = 0; k < cols; k += 16) {
        const int n = static_cast<int>(std::min<int64_t>(16, cols - k));
        std::byte values[16 * kBytes] = {};
        for (int i = 0; i < n; ++i)
            std::memcpy(values + i * kBytes, from + (k + i) * kTileRows * kBytes, kBytes);
        F::load(values).store_n(out + k, n);
    }
}

struct Panel {
    alignas(64) float w[kFloatPanel][16];
};

template <int kTiles, int kRows>
void micro(const Panel* panels, int n, StridedRows x, int64_t first, float* out) {
    const float* rows[kRows];
    repeat<kRows>([&](int t) { rows[t] = reinterpret_cast<const float*>(x[t]) + first; });
    Sums<kTiles, kRows> acc;
    acc.load(out, first == 0);
    for (int k = 0; k < n; ++k) {
        F32x16 w[kTiles];
        repeat<kTiles>([&](int r) { w[r] = F32x16::load(panels[r].w[k]); });
        repeat<kRows>([&](int t) {
            const F32x16 value = F32x16::set1(rows[t][k]);
            repeat<kTiles>([&](int r) { acc.v[r][t] = fma(w[r], value, acc.v[r][t]); });
        });
    }
    acc.store(out);
}

// Multiplies a few rows; weights are converted to floats in registers. Two tiles are processed at once,
// because the dependent additions of one tile would be slower than memory.
template <class F, int kTiles, int kRows>
void few(const TileMatmul& a, int first) {
    constexpr int kStep = kTileRows * F::kBytes;
    const float* x[kRows];
    repeat<kRows>([&](int t) { x[t] = reinterpret_cast<const float*>(a.x[first + t]); });
    Sums<kTiles, kRows> acc;
    acc.load(a.out, true);
    for (int64_t k = 0; k < a.cols; ++k) {
        F32x16 w[kTiles];
        repeat<kTiles>([&](int r) { w[r] = F::load(a.tile[r] + k * kStep); });
        repeat<kRows>([&](int t) {
            const F32x16 value = F32x16::set1(x[t][k]);
            repeat<kTiles>([&](int r) { acc.v[r][t] = fma(w[r], value, acc.v[r][t]); });
        });
    }
    acc.store(a.out + first * kOutStride);
}

template <class F>
void matmul(const TileMatmul& a) {
    if (a.n <= 2 * kFewRows) {
        for_few(a.n,
                [&]<int kRows>(int t) { a.n_tiles == 2 ? few<F, 2, kRows>(a, t) : few<F, 1, kRows>(a, t); });
        return;
    }
    Panel panels[2];
    for (int64_t first = 0; first < a.cols; first += kFloatPanel) {
        const int n = static_cast<int>(a.cols - first < kFloatPanel ? a.cols - first : kFloatPanel);
        for (int r = 0; r < a.n_tiles; ++r)
            for (int k = 0; k < n; ++k)
                F::load(a.tile[r] + (first + k) * kTileRows * F::kBytes).store(panels[r].w[k]);
        for_blocks(a.n_tiles, a.n, [&]<int kTiles, int kRows>(int tile, int t) {
            micro<kTiles, kRows>(panels + tile, n, a.x + t, first, a.out + t * kOutStride + tile * 16);
        });
    }
}

#if defined(ZINC_HAS_BF16)

struct Pairs {
    static int64_t bytes(int64_t cols) { return (cols + 1) / 2 * 64; }
    static std::byte* at(std::byte* tile, int64_t k, int row) {
        return tile + k / 2 * 64 + row * 4 + k % 2 * 2;
    }
};

void pack_pairs(const std::byte* const* rows, int64_t cols, const uint8_t*, std::byte* tile) {
    std::memset(tile, 0, static_cast<size_t>(Pairs::bytes(cols)));
    for (int row = 0; row < kTileRows; ++row)
        for (int64_t k = 0; rows[row] && k < cols; ++k)
            std::memcpy(Pairs::at(tile, k, row), rows[row] + k * 2, 2);
}

void decode_pairs(const std::byte* tile, int64_t cols, int lane, float* out) {
    for (int64_t k = 0; k < cols; ++k) {
        uint16_t half;
        std::memcpy(&half, Pairs::at(const_cast<std::byte*>(tile), k, lane), 2);
        out[k] = bf16_to_f32(half);
    }
}

template <int kTiles, int kRows>
void pairs_micro(const std::byte* const* w, StridedRows x, int64_t first, int64_t last, float* out) {
    Sums<kTiles, kRows> acc;
    acc.load(out, first == 0);
    for (int64_t pair = first; pair < last; ++pair) {
        repeat<kRows>([&](int t) {
            const int32_t two = load32(x[t] + pair * 4);
            repeat<kTiles>([&](int r) { acc.v[r][t] = dot2_bf16(acc.v[r][t], w[r] + pair * 64, two); });
        });
    }
    acc.store(out);
}

void matmul_pairs(const TileMatmul& a) {
    // With many rows, panels keep the weights in the L1 cache. A few rows need no panels.
    const int64_t pairs = (a.cols + 1) / 2, step = a.n > kTokenBlock ? 128 : pairs;
    for (int64_t first = 0; first < pairs; first += step) {
        const int64_t last = pairs - first < step ? pairs : first + step;
        for_blocks(a.n_tiles, a.n, [&]<int kTiles, int kRows>(int tile, int t) {
            pairs_micro<kTiles, kRows>(a.tile + tile, a.x + t, first, last,
                                       a.out + t * kOutStride + tile * 16);
        });
    }
}

#endif

struct BF16 {
    static constexpr int kBytes = 2;
    static constexpr const char* kName = "BF16";
    static F32x16 load(const std::byte* p) { return F32x16::load_bf16(reinterpret_cast<const uint16_t*>(p)); }
};

template <class F>
constexpr WeightFormat kFormat{F::kName,      RowFormat::f32, 1,         F::kBytes, 0,
                               tile_bytes<F>, pack<F>,        decode<F>, matmul<F>};

#if defined(ZINC_HAS_FAST_DOT2)
constexpr WeightFormat kHalf{
    F16::kName,  RowFormat::q15_32, 1, F16::kBytes, 0, half_tile::tile_bytes, half_tile::pack,
    decode<F16>, half_tile::matmul};
#else
constexpr WeightFormat kHalf = kFormat<F16>;
#endif

constexpr WeightFormat kAll[] = {kFormat<F32>, kHalf, kFormat<BF16>};
#if defined(ZINC_HAS_BF16)
constexpr WeightFormat kPairs{"BF16",     RowFormat::bf16, 1,           2, 0, Pairs::bytes,
                              pack_pairs, decode_pairs,    matmul_pairs};
constexpr WeightFormat kAllWithPairs[] = {kFormat<F32>, kHalf, kPairs};
#endif

}  // namespace

constinit const Formats float_formats{kAll};
#if defined(ZINC_HAS_BF16)
constinit const Formats float_formats_bf16{kAllWithPairs};
#endif

}  // namespace zinc::ZINC_LEVEL
