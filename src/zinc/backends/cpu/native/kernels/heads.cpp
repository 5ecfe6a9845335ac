// head_linear multiplies each head with its own matrix; concat_heads joins the heads of two rows.
#include <cstring>

#include "linear.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using linear_in = operands::head_linear;
using concat_in = operands::concat_heads;

// ---- head_linear: y of head h = x of head h times weight[h] transposed
//
// The weight is [heads, rows, cols] or [heads * rows, cols]. The chunk that multiplies a head of x also
// converts it to the row format of the weight, because no other op reads it in that format.

struct Params {
    int n_heads;
    int64_t rows;  // weight rows of a head
};

void prepare_linear(Launch& l, const Attrs& attrs) {
    require_operands(l, linear_in::n_inputs, 1);
    require_packed(l, l.in[linear_in::weight], "the weight");
    const PackedTensor& w = *l.in[linear_in::weight].tensor;
    Params& p = l.as<Params>();
    p.n_heads = whole(l, attrs, "n_heads", 1, 1 << 16);
    require(l, w.planes == p.n_heads || (w.planes == 1 && w.rows % p.n_heads == 0),
            "the weight is not cut into " + std::to_string(p.n_heads) + " heads");
    p.rows = w.planes * w.rows / p.n_heads;
    require_rows(l, l.in[linear_in::x], "x", RowFormat::f32, p.n_heads * w.cols);
    require_rows(l, l.out[0], "y", RowFormat::f32, p.n_heads * p.rows);
}

// Division into heads x panels of rows. There are several panels only if there are too few heads.
struct HeadGrid {
    int n_heads, rows, panels;
    HeadGrid(const Params& p, int n_rows, int n_threads) : n_heads(p.n_heads), rows(n_rows) {
        constexpr int kMin = 16, kMax = 128;
        const int wanted = n_threads == 1 ? 1 : (8 * n_threads + n_heads - 1) / n_heads;
        panels = std::max((rows + kMax - 1) / kMax, std::min(wanted, (rows + kMin - 1) / kMin));
    }
    int chunks() const { return n_heads * panels; }
    int first(int panel) const { return rows * panel / panels; }
};

HeadGrid head_grid(const Launch& l, const Batch& b) { return {l.as<Params>(), l.rows(b), l.n_threads}; }

int linear_chunks(const Launch& l, const Batch& b, int) { return head_grid(l, b).chunks(); }

void run_linear(const Launch& l, const Batch& b, int chunk, Scratch& scratch) {
    const auto& p = l.as<Params>();
    const HeadGrid grid = head_grid(l, b);
    const PackedTensor& w = *l.in[linear_in::weight].tensor;
    const int head = chunk / grid.panels, first = grid.first(chunk % grid.panels);
    const int n = grid.first(chunk % grid.panels + 1) - first;
    const RowFormat format = w.format->row_format;
    const int cols = static_cast<int>(w.cols);

    const auto rows = static_cast<size_t>(n);
    const int64_t rounded = format == RowFormat::f32 ? 0 : row_bytes(format, cols);
    auto* bytes = scratch.get<std::byte>(rows * (kOutStride * 4 + static_cast<size_t>(rounded)));
    auto* sums = reinterpret_cast<float*>(bytes);
    StridedRows x{l.in[linear_in::x].row<std::byte>(first) + int64_t{head} * cols * 4,
                  l.in[linear_in::x].stride};
    if (format != RowFormat::f32) {
        std::byte* quantised = bytes + rows * kOutStride * 4;
        for (int i = 0; i < n; ++i)
            quantize_row(reinterpret_cast<const float*>(x[i]), cols, format, quantised + i * rounded);
        x = {quantised, rounded};
    }

    // Rows [from, to) of the plane belong to the head. Its first and last tile may also have rows of other
    // heads.
    const int64_t plane = w.planes == 1 ? 0 : head, from = w.planes == 1 ? head * p.rows : 0,
                  to = from + p.rows;
    const int64_t last_tile = (to + kTileRows - 1) / kTileRows;
    for (int64_t tile = from / kTileRows; tile < last_tile; tile += 2) {
        const int n_tiles = tile + 1 < last_tile ? 2 : 1;
        const std::byte* second = n_tiles == 2 ? w.tile(plane, tile + 1) : nullptr;
        w.format->matmul({{w.tile(plane, tile), second}, n_tiles, w.cols, x, n, sums});
        const int64_t begin = std::max(from, tile * kTileRows),
                      end = std::min(to, (tile + n_tiles) * kTileRows);
        for (int i = 0; i < n; ++i)
            std::memcpy(l.out[0].row(first + i) + head * p.rows + begin - from,
                        sums + int64_t{i} * kOutStride + begin - tile * kTileRows,
                        static_cast<size_t>(end - begin) * sizeof(float));
    }
}

// ---- concat_heads: head h of y = [head h of a | head h of b]

void prepare_concat(Launch& l, const Attrs& attrs) {
    require_operands(l, concat_in::n_inputs, 1);
    const int n_heads = whole(l, attrs, "n_heads", 1, 1 << 16);
    for (const Operand& o : l.in) {
        require_rows(l, o, "each input", RowFormat::f32);
        require(l, o.cols % n_heads == 0, "n_heads must divide the columns");
    }
    require_rows(l, l.out[0], "y", RowFormat::f32,
                 int64_t{l.in[concat_in::a].cols} + l.in[concat_in::b].cols);
    l.as<int>() = n_heads;
}

Grid concat_grid(const Launch& l, const Batch& b) { return Grid(l.rows(b), l.out[0].cols, true); }

int concat_chunks(const Launch& l, const Batch& b, int) { return concat_grid(l, b).chunks(); }

void run_concat(const Launch& l, const Batch& b, int chunk, Scratch&) {
    const int n_heads = l.as<int>(), a_dim = l.in[concat_in::a].cols / n_heads,
              b_dim = l.in[concat_in::b].cols / n_heads;
    concat_grid(l, b).each(chunk, [&](int r, int, int) {
        for (int h = 0; h < n_heads; ++h) {
            float* y = l.out[0].row(r) + int64_t{h} * (a_dim + b_dim);
            std::memcpy(y, l.in[concat_in::a].row(r) + int64_t{h} * a_dim,
                        static_cast<size_t>(a_dim) * sizeof(float));
            std::memcpy(y + a_dim, l.in[concat_in::b].row(r) + int64_t{h} * b_dim,
                        static_cast<size_t>(b_dim) * sizeof(float));
        }
    });
}

}  // namespace

const Kernel head_linear_kernel{"head_linear", prepare_linear, linear_chunks, run_linear};
const Kernel concat_heads_kernel{"concat_heads", prepare_concat, concat_chunks, run_concat};

}  // namespace zinc::ZINC_LEVEL
