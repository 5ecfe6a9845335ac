// lora: y_i += scale * B_i (A_i x) for one to four products of the same x, where `scale` is the scale of the
// adapter for the sequence of a row. Rows of sequences without the adapter stay unchanged.
//
// A chunk is a panel of rows times a slice of the tiles of B. Every chunk computes A x of its rows itself:
// for a few rows this costs less than a barrier between two launches, and with many rows one chunk has all
// tiles.
#include <cmath>
#include <cstring>

#include "../half.h"
#include "../q8row.h"
#include "../simd.h"
#include "../unroll.h"
#include "linear.h"
#include "rows.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {
namespace {

constexpr int kMaxParts = 4;
constexpr int kPanelRows = 8;
// Rows that are multiplied at once with a tile, so that their sums stay in registers.
#if defined(ZINC_SIMD_AVX512)
constexpr int kBlockRows = 4;
#else
constexpr int kBlockRows = 2;
#endif
constexpr int kSmallestSlice = 8;         // tiles of B
constexpr int kHalfTile = 2 * kTileRows;  // bytes of 16 halves

struct Params {
    int n_parts, adapter, n_tiles;
    int64_t widest;  // the largest rank, as whole tiles
    int first_tile[kMaxParts + 1];
};

using in = operands::lora;
const Operand& a_of(const Launch& l, int part) { return l.in[in::a(static_cast<size_t>(part))]; }
const Operand& b_of(const Launch& l, int part) { return l.in[in::b(static_cast<size_t>(part))]; }
const Operand& y_of(const Launch& l, int part) { return l.in[in::y(static_cast<size_t>(part))]; }

void require_halves(const Launch& l, const Operand& w, const char* name) {
    require_packed(l, w, name);
    require(l, w.tensor->planes == 1 && std::string_view(w.tensor->format->name) == "F16",
            std::string(name) + " must be a matrix of type F16");
}

void prepare(Launch& l, const Attrs& attrs) {
    auto& p = l.as<Params>();
    p.adapter = whole(l, attrs, "adapter", 0, 1 << 16);
    require(l, l.out.size() >= 1 && l.out.size() <= kMaxParts, "there must be 1 to 4 parts");
    p.n_parts = static_cast<int>(l.out.size());
    require_operands(l, in::n_inputs(l.out.size()), l.out.size());
    const Operand& x = l.in[in::x];
    require_rows(l, x, "x");
    p.widest = p.n_tiles = 0;
    for (int i = 0; i < p.n_parts; ++i) {
        require_halves(l, b_of(l, i), "b");
        const PackedTensor& b = *b_of(l, i).tensor;
        int64_t rank = x.cols;
        if (a_of(l, i)) {
            require_halves(l, a_of(l, i), "a");
            rank = a_of(l, i).tensor->rows;
            require(l, a_of(l, i).tensor->cols == x.cols, "a and x differ in columns");
        }
        require(l, b.cols == rank, "a and b differ in rank");
        require_rows(l, y_of(l, i), "y", RowFormat::f32, b.rows);
        require_rows(l, l.out[static_cast<size_t>(i)], "the output", RowFormat::f32, b.rows);
        p.first_tile[i] = p.n_tiles;
        p.n_tiles += static_cast<int>(tiles_of(b));
        p.widest = std::max(p.widest, (rank + kTileRows - 1) / kTileRows * kTileRows);
    }
    p.first_tile[p.n_parts] = p.n_tiles;
}

float scale_of(const Launch& l, const Batch& b, int row) {
    if (!b.adapters) return 0;
    const int token = l.dim == Dim::outputs ? b.output_rows[row] : row;
    return b.adapters[int64_t{b.sequence[token]} * b.n_adapters + l.as<Params>().adapter];
}

bool in_place(const Launch& l) {
    for (int i = 0; i < l.as<Params>().n_parts; ++i)
        if (y_of(l, i).data != l.out[static_cast<size_t>(i)].data) return false;
    return true;
}

struct Division {
    int rows, panels, slice, slices;
    Division(const Launch& l, const Batch& b)
        : rows(l.rows(b)), panels((rows + kPanelRows - 1) / kPanelRows) {
        const int tiles = l.as<Params>().n_tiles, wanted = (l.n_threads + panels - 1) / std::max(1, panels);
        slice = std::max(std::min(tiles, kSmallestSlice), (tiles + wanted - 1) / std::max(1, wanted));
        slices = (tiles + slice - 1) / slice;
    }
};

int chunks(const Launch& l, const Batch& b, int) {
    require(l, !b.adapters || l.as<Params>().adapter < b.n_adapters, "the step has no scales of the adapter");
    const Division d(l, b);
    bool used = !in_place(l);
    for (int row = 0; row < d.rows && !used; ++row) used = scale_of(l, b, row) != 0;
    return used ? d.panels * d.slices : 0;
}

// Stores a row of x as floats.
void to_floats(const Operand& x, int row, float* out) {
    const auto* data = x.row<std::byte>(row);
    if (x.format == RowFormat::f32) {
        std::memcpy(out, data, static_cast<size_t>(x.cols) * 4);
    } else if (x.format == RowFormat::bf16) {
        const auto* halves = reinterpret_cast<const uint16_t*>(data);
        for_lanes(0, x.cols, [&](int i, auto lanes) {
            if constexpr (std::is_same_v<decltype(lanes), AllLanes>)
                F32x16::load_bf16(halves + i).store(out + i);
            else
                for (int k = i; k < i + lanes; ++k) out[k] = bf16_to_f32(halves[k]);
        });
    } else if (x.format == RowFormat::q15_32) {
        const auto* q = reinterpret_cast<const int16_t*>(data);
        const auto* d = reinterpret_cast<const float*>(data + Q15Row(x.cols).d);
        for (int k = 0; k < x.cols; ++k) out[k] = d[k / 32] * static_cast<float>(q[k]);
    } else {
        const int block = format_block(x.format);
        const auto* q = reinterpret_cast<const int8_t*>(data);
        const auto* d = reinterpret_cast<const float*>(data + Q8Row(x.format, x.cols).d);
        for (int first = 0; first < x.cols; first += block) {
            const F32x16 scale = F32x16::set1(d[first / block]);
            const int last = std::min(x.cols, first + block);  // a multiple of 32
            for (int k = first; k < last; k += 16) (scale * F32x16::load_i8(q + k)).store(out + k);
        }
    }
}

// Prefetches a cache line ahead of `p`. Callers pass every second half line, so that no line is prefetched
// twice.
inline void prefetch_from(const std::byte* p) {
    __builtin_prefetch(prefers_alternating_pages ? alternating_line<4>(p) : p + 1024);
}

// h[r][i] = scales[r] * (row i of A) . x[r]. Four running sums hide the latency of fma; they are added in a
// fixed order.
template <int kRows>
void shrink(const PackedTensor& a, const float* x, int64_t stride, const float* scales, float* h,
            int64_t h_stride) {
    constexpr int kSums = 4;
    for (int64_t tile = 0; tile < tiles_of(a); ++tile) {
        const std::byte* w = a.tile(0, tile);
        F32x16 sums[kRows][kSums];
        repeat<kRows>([&](int r) { repeat<kSums>([&](int j) { sums[r][j] = F32x16::zero(); }); });
        auto step = [&](int64_t k, int j) {
            const F32x16 v = F32x16::load_f16(reinterpret_cast<const uint16_t*>(w + k * kHalfTile));
            repeat<kRows>([&](int r) { sums[r][j] = fma(v, F32x16::set1(x[r * stride + k]), sums[r][j]); });
        };
        int64_t k = 0;
        for (; k + kSums <= a.cols; k += kSums) {
            if constexpr (kRows == 1) {
                prefetch_from(w + k * kHalfTile);
                prefetch_from(w + (k + 2) * kHalfTile);
            }
            repeat<kSums>([&](int j) { step(k + j, j); });
        }
        for (int j = 0; k < a.cols; ++k, ++j) step(k, j);
        repeat<kRows>([&](int r) {
            const F32x16 all = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
            (all * F32x16::set1(scales[r])).store(h + r * h_stride + tile * kTileRows);
        });
    }
}

// y[r] += B h[r] for kTiles tiles of B.
template <int kTiles, int kRows>
void expand(const PackedTensor& b, int64_t tile, const float* h, int64_t h_stride, float* const* y) {
    const std::byte* w[kTiles];
    repeat<kTiles>([&](int t) { w[t] = b.tile(0, tile + t); });
    F32x16 sums[kTiles][kRows];
    repeat<kTiles>([&](int t) { repeat<kRows>([&](int r) { sums[t][r] = F32x16::zero(); }); });
    for (int64_t k = 0; k < b.cols; ++k) {
        F32x16 v[kTiles];
        if (kRows == 1 && k % 2 == 0) repeat<kTiles>([&](int t) { prefetch_from(w[t] + k * kHalfTile); });
        repeat<kTiles>(
            [&](int t) { v[t] = F32x16::load_f16(reinterpret_cast<const uint16_t*>(w[t] + k * kHalfTile)); });
        repeat<kRows>([&](int r) {
            const F32x16 value = F32x16::set1(h[r * h_stride + k]);
            repeat<kTiles>([&](int t) { sums[t][r] = fma(v[t], value, sums[t][r]); });
        });
    }
    repeat<kRows>([&](int r) {
        repeat<kTiles>([&](int t) {
            const int64_t first = (tile + t) * kTileRows, left = b.rows - first;
            float* out = y[r] + first;
            if (left >= kTileRows)
                (F32x16::load(out) + sums[t][r]).store(out);
            else
                store(load(out, static_cast<int>(left)) + sums[t][r], out, static_cast<int>(left));
        });
    });
}

template <int kRows>
void expand_slice(const PackedTensor& b, int64_t first, int64_t last, const float* h, int64_t h_stride,
                  float* const* y) {
    int64_t tile = first;
    for (; tile + 4 <= last; tile += 4) expand<4, kRows>(b, tile, h, h_stride, y);
    for (; tile < last; ++tile) expand<1, kRows>(b, tile, h, h_stride, y);
}

// Calls f<number of rows>(first row) for blocks of the n rows.
template <class F>
void for_row_blocks(int n, F&& f) {
    int r = 0;
    for (; r + kBlockRows <= n; r += kBlockRows) f.template operator()<kBlockRows>(r);
    for (; r < n; ++r) f.template operator()<1>(r);
}

void copy_slice(const Launch& l, int part, int row, int64_t first, int64_t last) {
    const Operand &y = y_of(l, part), &out = l.out[static_cast<size_t>(part)];
    if (y.data == out.data) return;
    const int64_t col = first * kTileRows, n = std::min<int64_t>(last * kTileRows, out.cols) - col;
    std::memcpy(out.row(row) + col, y.row(row) + col, static_cast<size_t>(n) * 4);
}

void run(const Launch& l, const Batch& b, int chunk, Scratch& scratch) {
    const auto& p = l.as<Params>();
    const Division d(l, b);
    const int first_row = chunk / d.slices * kPanelRows, last_row = std::min(d.rows, first_row + kPanelRows);
    const int begin = chunk % d.slices * d.slice, end = std::min(p.n_tiles, begin + d.slice);
    int rows[kPanelRows], n = 0;
    float scales[kPanelRows];
    for (int row = first_row; row < last_row; ++row) {
        for (int i = 0; i < p.n_parts; ++i) {
            const int first = std::max(begin, p.first_tile[i]), last = std::min(end, p.first_tile[i + 1]);
            if (first < last) copy_slice(l, i, row, first - p.first_tile[i], last - p.first_tile[i]);
        }
        if (const float scale = scale_of(l, b, row); scale != 0) rows[n] = row, scales[n++] = scale;
    }
    if (n == 0) return;
    const Operand& operand = l.in[in::x];
    const int64_t stride = (operand.cols + 15) / 16 * 16;
    float* x = scratch.get(static_cast<size_t>(kPanelRows * (stride + p.widest)));
    float* h = x + kPanelRows * stride;
    for (int r = 0; r < n; ++r) to_floats(operand, rows[r], x + r * stride);
    for (int i = 0; i < p.n_parts; ++i) {
        const int64_t first = std::max(begin, p.first_tile[i]) - p.first_tile[i];
        const int64_t last = std::min(end, p.first_tile[i + 1]) - p.first_tile[i];
        if (first >= last) continue;
        if (const PackedTensor* a = a_of(l, i).tensor) {
            for_row_blocks(n, [&]<int kRows>(int r) {
                shrink<kRows>(*a, x + r * stride, stride, scales + r, h + r * p.widest, p.widest);
            });
        } else {
            for (int r = 0; r < n; ++r)
                for (int k = 0; k < operand.cols; ++k) h[r * p.widest + k] = scales[r] * x[r * stride + k];
        }
        float* y[kPanelRows];
        for (int r = 0; r < n; ++r) y[r] = l.out[static_cast<size_t>(i)].row(rows[r]);
        const PackedTensor& w = *b_of(l, i).tensor;
        for_row_blocks(n, [&]<int kRows>(int r) {
            expand_slice<kRows>(w, first, last, h + r * p.widest, p.widest, y + r);
        });
    }
}

}  // namespace

const Kernel lora_kernel{"lora", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
