// token_shift: y[t] = x[t] + weight * (x[t - 1] - x[t]) for each run of columns of y, which are as wide as x.
//
// A chunk is a run of columns of x over all rows of the step. The row before the first one of a sequence
// comes from the state, which is the last row of x. With the attribute `rollback` it is a ring of 1 +
// rollback rows, in which the row of position p is row p mod (1 + rollback). So a sequence can continue from
// any of the last `rollback` positions.
#include <algorithm>

#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::token_shift;

constexpr int kMaxRollback = 64;
constexpr int kStep = 64;        // the columns of a chunk are a multiple of this
constexpr int kElements = 2048;  // fewest elements of x in a chunk

struct Params {
    int runs, ring;
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    Params& p = l.as<Params>();
    const int cols = l.in[in::x].cols;
    require_rows(l, l.in[in::x], "x", RowFormat::f32, cols);
    require(l, cols > 0 && l.out[0].cols % cols == 0, "y must have whole runs of the columns of x");
    p.runs = l.out[0].cols / cols;
    p.ring = 1 + (attrs.get("rollback", 0) == 0 ? 0 : whole(l, attrs, "rollback", 1, kMaxRollback));
    require_rows(l, l.out[0], "y", RowFormat::f32, p.runs * cols);
    require_vector(l, l.in[in::weight], "weight", int64_t{p.runs} * cols);
    require(l, l.in[in::state].state != nullptr, "needs a state");
    require(l, l.in[in::state].state->floats_per_slot == int64_t{p.ring} * cols,
            "the state must hold " + std::to_string(p.ring) + " rows of x");
}

int chunk_cols(const Launch& l, const Batch& batch) {
    const int shared = l.in[in::x].cols / (2 * l.n_threads),
              smallest = kElements / std::max(1, batch.n_tokens);
    return (std::max({1, shared, smallest}) + kStep - 1) / kStep * kStep;
}

int chunks(const Launch& l, const Batch& batch, int) {
    const int step = chunk_cols(l, batch);
    return batch.n_tokens ? (l.in[in::x].cols + step - 1) / step : 0;
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const int cols = l.in[in::x].cols, step = chunk_cols(l, batch);
    const int first = chunk * step, n = std::min(step, cols - first);
    const float* weight = l.in[in::weight].tensor->vector() + first;
    const StateLayer& states = *l.in[in::state].state;
    float* start = scratch.get(static_cast<size_t>(step));
    for (int s = 0; s < batch.n_sequences; ++s) {
        const int begin = batch.seq_start[s], end = batch.seq_start[s + 1];
        if (begin == end) continue;
        float* slot = reinterpret_cast<float*>(states.bytes.data) +
                      batch.state_slot[s] * states.floats_per_slot + first;
        const int position = batch.positions[begin];
        if (position == 0)
            std::fill_n(start, n, 0.0f);
        else
            std::copy_n(slot + int64_t{(position - 1) % p.ring} * cols, n, start);
        const float* before = start;
        for (int t = begin; t < end; ++t) {
            const float* x = l.in[in::x].row(t) + first;
            float* y = l.out[0].row(t) + first;
            for_lanes(0, n, [&](int c, auto lanes) {
                const F32x16 now = load(x + c, lanes), change = load(before + c, lanes) - now;
                for (int64_t at = c; at < int64_t{p.runs} * cols; at += cols)
                    store(fma(load(weight + at, lanes), change, now), y + at, lanes);
            });
            if (end - t <= p.ring) std::copy_n(x, n, slot + int64_t{(position + t - begin) % p.ring} * cols);
            before = x;
        }
    }
}

}  // namespace

const Kernel token_shift_kernel{"token_shift", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
