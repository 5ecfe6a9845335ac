// moe_down: y[token] = residual + sum over its slots of weight * (scale[e] * h[slot] D[e]^T + b[e]).
//
// A chunk computes some columns of y for all tokens and visits the experts in ascending order. So the sum of
// a token needs no temporary memory, and its order depends on the experts of that token only.
#include "moe.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::moe_down;

constexpr int kUnit = 2 * kTileRows;  // columns of y in one product

struct Params {
    int top_k, units;
};

void prepare(Launch& l, const Attrs&) {
    require_operands(l, in::n_inputs, 1);
    require_experts(l, l.in[in::down], l.in[in::order], l.in[in::starts], "the down weight");
    const PackedTensor& down = *l.in[in::down].tensor;
    Params& p = l.as<Params>();
    p.top_k = l.in[in::order].cols;
    p.units = static_cast<int>((tiles_of(down) + 1) / 2);
    require_rows(l, l.in[in::h], "h", down.format->row_format, p.top_k * down.cols);
    require_runs_of(l, l.in[in::h], p.top_k, down.cols);
    require_rows(l, l.in[in::routes], "routes", RowFormat::f32, 2 * p.top_k);
    require_expert_vector(l, l.in[in::bias], "the bias", down);
    if (l.in[in::scale]) require_vector(l, l.in[in::scale], "the scale", down.planes);
    if (l.in[in::residual]) require_rows(l, l.in[in::residual], "the residual", RowFormat::f32, down.rows);
    require_rows(l, l.out[0], "y", RowFormat::f32, down.rows);
}

// Units of a chunk: several for few slots, so that contiguous weights are read; fewer for many slots, which
// balances the load better.
int step(const Launch& l, const Batch& b) {
    const auto& p = l.as<Params>();
    const bool few = int64_t{l.rows(b)} * p.top_k <= l.in[in::down].tensor->planes;
    return std::max(1, p.units / (l.n_threads * (few ? 4 : 16)));
}

int chunks(const Launch& l, const Batch& b, int) {
    const int units = step(l, b);
    return l.rows(b) ? (l.as<Params>().units + units - 1) / units : 0;
}

void run(const Launch& l, const Batch& b, int chunk, Scratch& scratch) {
    const auto& p = l.as<Params>();
    const PackedTensor& down = *l.in[in::down].tensor;
    const Operand &h = l.in[in::h], &routes = l.in[in::routes];
    const int n_tokens = l.rows(b), n_slots = n_tokens * p.top_k, units = step(l, b);
    const int first_unit = chunk * units, last_unit = std::min(p.units, first_unit + units),
              width = units * kUnit;
    const Runs runs(l.in[in::order], l.in[in::starts], n_tokens);
    prefetch_start(down.tile(runs.expert(0), first_unit * 2));
    const size_t n_sums = static_cast<size_t>(n_tokens) * static_cast<size_t>(width);
    const int64_t bytes = run_bytes(h.format, down.cols);
    RunRows rows(scratch, std::min(n_slots, kMaxRunRows), bytes, n_sums);
    float* y = rows.floats;  // [token][width]
    std::fill_n(y, n_sums, 0.0f);

    for (int at = 0; at < n_slots;) {
        const int expert = runs.expert(at);
        at = runs.end(expert);
        const int following = at < n_slots ? runs.expert(at) : expert;
        const F32x16 scale = F32x16::set1(l.in[in::scale] ? l.in[in::scale].tensor->vector()[expert] : 1.0f);
        const float* bias = l.in[in::bias] ? l.in[in::bias].tensor->vector() + expert * down.rows : nullptr;
        runs.panels(expert, [&](int first, int n) {
            rows.n = n;
            for (int i = 0; i < n; ++i) {
                rows.slots[i] = runs.slot(first + i);
                const int token = rows.slots[i] / p.top_k, rank = rows.slots[i] % p.top_k;
                rows.take(i, h.row<std::byte>(token) + rank * bytes);
                rows.weights[i] = routes.row(token)[p.top_k + rank];
            }
            for (int unit = first_unit; unit < last_unit; ++unit) {
                const bool pair = unit * 2 + 1 < tiles_of(down);
                const int n_tiles = pair ? 2 : 1;
                const std::byte* second = pair ? down.tile(expert, unit * 2 + 1) : nullptr;
                const bool last = unit + 1 == last_unit;
                const std::byte* next =
                    down.tile(last ? following : expert, (last ? first_unit : unit + 1) * 2);
                down.format->matmul(product(rows, down.tile(expert, unit * 2), second, next,
                                            next + down.tile_bytes, down.cols));
                for (int j = 0; j < n_tiles; ++j) {
                    const int64_t row = int64_t{unit} * kUnit + j * kTileRows;
                    const int lanes = static_cast<int>(std::min<int64_t>(kTileRows, down.rows - row));
                    const F32x16 added = bias ? F32x16::load_n(bias + row, lanes) : F32x16::zero();
                    float* to = y + (unit - first_unit) * kUnit + j * kTileRows;
                    for (int i = 0; i < n; ++i) {
                        float* sum = to + int64_t{rows.slots[i] / p.top_k} * width;
                        const F32x16 v =
                            fma(F32x16::load(rows.sums + i * kOutStride + j * kTileRows), scale, added);
                        fma(F32x16::set1(rows.weights[i]), v, F32x16::load(sum)).store(sum);
                    }
                }
            }
        });
    }

    const int64_t col = int64_t{first_unit} * kUnit;
    const int cols = static_cast<int>(std::min<int64_t>((last_unit - first_unit) * kUnit, down.rows - col));
    for (int t = 0; t < n_tokens; ++t) {
        const float* sum = y + int64_t{t} * width;
        const float* residual = l.in[in::residual] ? l.in[in::residual].row(t) + col : nullptr;
        float* out = l.out[0].row(t) + col;
        for_lanes(0, cols, [&](int i, auto lanes) {
            const F32x16 v = load(sum + i, lanes);
            store(residual ? v + load(residual + i, lanes) : v, out + i, lanes);
        });
    }
}

}  // namespace

const Kernel moe_down_kernel{"moe_down", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
