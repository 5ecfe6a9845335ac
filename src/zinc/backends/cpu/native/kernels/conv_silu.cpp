// conv_silu: y[t] = silu(sum over taps i of weight[i] * x[t - (taps - 1) + i]) for each column.
//
// A chunk is a run of columns over all rows of the step. It starts with the last row of a sequence: y[t]
// reads no row of x after t, so y may be stored in place of x. Rows before the first row of the step come
// from the state.
#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::conv_silu;

constexpr int kMaxTaps = 64;
constexpr int kStep = 64;        // the columns of a chunk are a multiple
constexpr int kElements = 2048;  // least elements of a chunk

// weight is [cols][taps]; the state is [taps - 1][cols], oldest row first. y may alias x.
struct Params {
    int taps;
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    const int cols = l.in[in::x].cols;
    require_rows(l, l.in[in::x], "x", RowFormat::f32, cols);
    require_rows(l, l.out[0], "y", RowFormat::f32, cols);
    const int taps = l.as<Params>().taps = whole(l, attrs, "taps", 2, kMaxTaps);
    require_vector(l, l.in[in::weight], "weight", int64_t{cols} * taps);
    require(l, l.in[in::state].state != nullptr, "needs a state");
    require(l, l.in[in::state].state->floats_per_slot == int64_t{cols} * (taps - 1),
            "the state must hold " + std::to_string(taps - 1) + " rows of x");
    // Transposed to [taps][cols], so that lanes are columns.
    l.shared = Bytes(static_cast<size_t>(cols) * static_cast<size_t>(taps) * sizeof(float));
    auto* transposed = reinterpret_cast<float*>(l.shared.data);
    const float* weight = l.in[in::weight].tensor->vector();
    for (int c = 0; c < cols; ++c)
        for (int i = 0; i < taps; ++i) transposed[i * cols + c] = weight[c * taps + i];
}

// Number of columns of a chunk: as many as leave work for all threads, because each row is in another page.
int chunk_cols(const Launch& l, const Batch& batch) {
    const int shared = l.in[in::x].cols / (2 * l.n_threads),
              smallest = kElements / std::max(1, batch.n_tokens);
    return (std::max({1, shared, smallest}) + kStep - 1) / kStep * kStep;
}

int chunks(const Launch& l, const Batch& batch, int) {
    const int step = chunk_cols(l, batch);
    return batch.n_tokens ? (l.in[in::x].cols + step - 1) / step : 0;
}

// One row of a chunk: n columns of y, and the `taps` rows of x that it reads, oldest first.
struct Line {
    const float* const* x;
    const float* weight;
    int64_t weight_stride;
    float* y;
    const float* next;  // a row that is read soon, to prefetch
    int n;
};

template <class Taps>
void convolve(const Line& line, Taps taps) {
    for_lanes(0, line.n, [&](int c, auto lanes) {
        __builtin_prefetch(line.next + c);
        F32x16 total = F32x16::zero();
        for (int i = 0; i < taps; ++i)
            total =
                fma(load(line.weight + i * line.weight_stride + c, lanes), load(line.x[i] + c, lanes), total);
        store(silu(total), line.y + c, lanes);
    });
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const int taps = l.as<Params>().taps, old = taps - 1, cols = l.in[in::x].cols,
              step = chunk_cols(l, batch);
    const int first = chunk * step, n = std::min(step, cols - first);
    const auto* weight = reinterpret_cast<const float*>(l.shared.data) + first;
    const StateLayer& states = *l.in[in::state].state;
    float* kept = scratch.get(static_cast<size_t>(old) * static_cast<size_t>(step));
    for (int s = 0; s < batch.n_sequences; ++s) {
        const int begin = batch.seq_start[s], end = batch.seq_start[s + 1];
        if (begin == end) continue;
        float* state = reinterpret_cast<float*>(states.bytes.data) +
                       batch.state_slot[s] * states.floats_per_slot + first;
        if (batch.positions[begin] == 0)
            for (int i = 0; i < old; ++i) std::fill_n(state + int64_t{i} * cols, n, 0.0f);
        auto row = [&](int t) -> const float* {
            return t < begin ? state + int64_t{old + t - begin} * cols : l.in[in::x].row(t) + first;
        };
        for (int i = 0; i < old; ++i) std::copy_n(row(end - old + i), n, kept + i * step);
        const float* x[kMaxTaps];
        for (int t = end - 1; t >= begin; --t) {
            for (int i = 0; i < taps; ++i) x[i] = row(t - old + i);
            const Line line{x, weight, cols, l.out[0].row(t) + first, row(std::max(begin - old, t - taps)),
                            n};
            if (taps == 4)
                convolve(line, std::integral_constant<int, 4>());
            else
                convolve(line, taps);
        }
        for (int i = 0; i < old; ++i) std::copy_n(kept + i * step, n, state + int64_t{i} * cols);
    }
}

}  // namespace

const Kernel conv_silu_kernel{"conv_silu", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
