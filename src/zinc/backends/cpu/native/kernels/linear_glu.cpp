// linear_glu: h = activation(x G^T + b_g) * (x U^T + b_u), both products of a gated MLP in one launch.
#include "../simd.h"
#include "linear.h"
#include "math.h"
#include "rows.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::linear_glu;

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require_weight(l, l.in[in::gate], l.in[in::x], "the gate weight");
    require_weight(l, l.in[in::up], l.in[in::x], "the up weight");
    const int64_t rows = l.in[in::gate].tensor->rows;
    require(l, l.in[in::up].tensor->rows == rows, "gate and up differ in rows");
    if (l.in[in::gate_bias]) require_vector(l, l.in[in::gate_bias], "the gate bias", rows);
    if (l.in[in::up_bias]) require_vector(l, l.in[in::up_bias], "the up bias", rows);
    require_rows(l, l.out[0], "h", RowFormat::f32, rows);
    auto& p = l.as<Glu>();
    p.fn = static_cast<ActivationFn>(whole(l, attrs, "activation", 0, kLastActivation));
    p.alpha = static_cast<float>(attrs.get("alpha", 1.702));
    p.limit = static_cast<float>(attrs.get("limit", 7.0));
}

LinearGrid grid(const Launch& l, const Batch& b) {
    const PackedTensor &gate = *l.in[in::gate].tensor, &up = *l.in[in::up].tensor;
    return {static_cast<int>(tiles_of(gate)), l.rows(b), gate.tile_bytes + up.tile_bytes,
            gate.format->panel_rows, l.n_threads};
}

int chunks(const Launch& l, const Batch& b, int) { return grid(l, b).chunks(); }

void run(const Launch& l, const Batch& b, int chunk, Scratch& scratch) {
    const PackedTensor &gate = *l.in[in::gate].tensor, &up = *l.in[in::up].tensor;
    const auto& p = l.as<Glu>();
    grid(l, b).each(chunk, [&](int tile, int first, int n) {
        float* sums = sums_of(scratch, n);
        const int64_t row = int64_t{tile} * kTileRows;
        const StridedRows x = rows_from(l.in[in::x], first);
        if (gate.format == up.format) {
            gate.format->matmul({{gate.tile(0, tile), up.tile(0, tile)},
                                 2,
                                 gate.cols,
                                 x,
                                 n,
                                 sums,
                                 {gate.tile(0, tile + 1), up.tile(0, tile + 1)},
                                 {upcoming(l.out[0], first, row, 1), {}}});
        } else {
            gate.format->matmul({{gate.tile(0, tile), nullptr}, 1, gate.cols, x, n, sums});
            up.format->matmul({{up.tile(0, tile), nullptr}, 1, up.cols, x, n, sums + kTileRows});
        }
        const int lanes = static_cast<int>(std::min<int64_t>(kTileRows, gate.rows - row));
        const float* gate_bias = l.in[in::gate_bias] ? l.in[in::gate_bias].tensor->vector() + row : nullptr;
        const float* up_bias = l.in[in::up_bias] ? l.in[in::up_bias].tensor->vector() + row : nullptr;
        for (int t = 0; t < n; ++t) {
            const float* from = sums + t * kOutStride;
            float* to = l.out[0].row(first + t) + row;
            for_lanes(0, lanes, [&](int, auto count) {
                F32x16 g = F32x16::load(from), u = F32x16::load(from + kTileRows);
                if (gate_bias) g = g + load(gate_bias, count);
                if (up_bias) u = u + load(up_bias, count);
                store(glu(p, g, u), to, count);
            });
        }
    });
}

}  // namespace

const Kernel linear_glu_kernel{"linear_glu", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
