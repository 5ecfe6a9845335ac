// linear: y_i = x W_i^T + b_i + residual_i for one to four weights W_i and the same x, in one launch.
#include "linear.h"

#include "../simd.h"
#include "rows.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {
namespace {

constexpr int kMaxParts = 4;

struct Params {
    int n_parts, units;
    int64_t unit_bytes;
    int first_unit[kMaxParts + 1];
};

using in = operands::linear;
const Operand& weight(const Launch& l, int part) { return l.in[in::weight(static_cast<size_t>(part))]; }
const Operand& bias(const Launch& l, int part) { return l.in[in::bias(static_cast<size_t>(part))]; }
const Operand& residual(const Launch& l, int part) { return l.in[in::residual(static_cast<size_t>(part))]; }

void prepare(Launch& l, const Attrs& attrs) {
    auto& p = l.as<Params>();
    const double n_parts = attrs.get("n_parts");
    require(l, n_parts == 1 || n_parts == 2 || n_parts == 3 || n_parts == 4, "n_parts must be 1 to 4");
    p.n_parts = static_cast<int>(n_parts);
    const auto parts = static_cast<size_t>(p.n_parts);
    require_operands(l, in::n_inputs(parts), parts);
    int64_t units = 0, bytes = 0;
    for (int i = 0; i < p.n_parts; ++i) {
        require_weight(l, weight(l, i), l.in[in::x], "a weight");
        const PackedTensor& w = *weight(l, i).tensor;
        require_rows(l, l.out[static_cast<size_t>(i)], "y", RowFormat::f32, w.rows);
        if (bias(l, i)) require_vector(l, bias(l, i), "bias", w.rows);
        if (residual(l, i)) require_rows(l, residual(l, i), "residual", RowFormat::f32, w.rows);
        p.first_unit[i] = static_cast<int>(units);
        units += (tiles_of(w) + 1) / 2;
        bytes += w.plane_bytes;
    }
    p.units = p.first_unit[p.n_parts] = static_cast<int>(units);
    p.unit_bytes = bytes / units;
}

LinearGrid grid(const Launch& l, const Batch& b) {
    const auto& p = l.as<Params>();
    return {p.units, l.rows(b), p.unit_bytes, weight(l, 0).tensor->format->panel_rows, l.n_threads};
}

int chunks(const Launch& l, const Batch& b, int) { return grid(l, b).chunks(); }

void run(const Launch& l, const Batch& b, int chunk, Scratch& scratch) {
    const auto& p = l.as<Params>();
    grid(l, b).each(chunk, [&](int unit, int first, int n) {
        int part = 0;
        while (unit >= p.first_unit[part + 1]) ++part;
        const PackedTensor& w = *weight(l, part).tensor;
        const int64_t tile = int64_t{unit - p.first_unit[part]} * 2;
        float* sums = sums_of(scratch, n);
        TileMatmul product{{w.tile(0, tile), nullptr},
                           1,
                           w.cols,
                           rows_from(l.in[in::x], first),
                           n,
                           sums,
                           {w.tile(0, tile + 2), w.tile(0, tile + 3)}};
        if (tile + 1 < tiles_of(w)) {
            product.tile[1] = w.tile(0, tile + 1);
            product.n_tiles = 2;
        }
        const int64_t row = tile * kTileRows;
        const Operand &y = l.out[static_cast<size_t>(part)], &r = residual(l, part);
        product.upcoming[0] = upcoming(y, first, row, product.n_tiles);
        if (r && r.data != y.data) product.upcoming[1] = upcoming(r, first, row, product.n_tiles);
        w.format->matmul(product);

        const int lanes = static_cast<int>(std::min<int64_t>(product.n_tiles * kTileRows, w.rows - row));
        const float* added = bias(l, part) ? bias(l, part).tensor->vector() + row : nullptr;
        for (int t = 0; t < n; ++t) {
            const float *from = sums + t * kOutStride, *rest = r ? r.row(first + t) + row : nullptr;
            float* to = y.row(first + t) + row;
            for_lanes(0, lanes, [&](int i, auto count) {
                F32x16 v = F32x16::load(from + i);
                if (added) v = v + load(added + i, count);
                if (rest) v = v + load(rest + i, count);
                store(v, to + i, count);
            });
        }
    });
}

}  // namespace

const Kernel linear_kernel{"linear", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
