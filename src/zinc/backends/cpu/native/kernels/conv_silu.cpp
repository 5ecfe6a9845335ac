// conv_silu: y[t] = silu(sum over taps i of weight[i] x[t - (taps - 1) + i]), each column for itself along its sequence.
//
// A chunk is a run of columns over all rows of the step. Rows go past a ring of the last taps - 1 rows in the cache,
// which is filled from the state of the sequence and written back behind its last row; so y may take the place of x.
#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

// in: x f32, weight (vector [cols][taps]), state [taps - 1][cols], oldest row first; out: y f32. y may alias x.
constexpr int kMaxTaps = 64;
constexpr int kStep = 64;        // columns of a chunk come in whole runs of this
constexpr int kElements = 2048;  // of a chunk, at least

struct Params {
    int taps;
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, 3, 1);
    require(l, l.dim == Dim::tokens, "has one row a token");
    const int cols = l.in[0].cols;
    require_rows(l, l.in[0], "x", Act::f32, cols);
    require_rows(l, l.out[0], "y", Act::f32, cols);
    const int taps = l.as<Params>().taps = whole(l, attrs, "taps", 1, kMaxTaps);
    require_vector(l, l.in[1], "weight", int64_t{cols} * taps);
    require(l, l.in[2].state != nullptr, "needs a state");
    require(l, l.in[2].state->floats_per_slot == int64_t{cols} * (taps - 1),
            "the state must hold " + std::to_string(taps - 1) + " rows of x");
    // [taps][cols], so that lanes are columns.
    l.shared = Bytes(static_cast<size_t>(cols) * static_cast<size_t>(taps) * sizeof(float));
    auto* turned = reinterpret_cast<float*>(l.shared.data);
    const float* weight = l.in[1].tensor->vector();
    for (int c = 0; c < cols; ++c)
        for (int i = 0; i < taps; ++i) turned[i * cols + c] = weight[c * taps + i];
}

int chunk_cols(const Launch& l, const Batch& batch) {
    const int wanted = kElements / std::max(1, batch.n_tokens);
    return (std::max(1, wanted) + kStep - 1) / kStep * kStep;
}

int chunks(const Launch& l, const Batch& batch, int) {
    const int step = chunk_cols(l, batch);
    return batch.n_tokens ? (l.in[0].cols + step - 1) / step : 0;
}

// One row of a chunk: n columns, `past` the rows before it, oldest first. It is kept at `keep`, n rounded up to lanes.
struct Line {
    const float *x, *weight;
    int64_t weight_stride;
    const float* const* past;
    float *keep, *y;
    int n;
};

template <class Taps> void convolve(const Line& line, Taps taps) {
    const int old = taps - 1;
    for_lanes(0, line.n, [&](int c, auto lanes) {
        const F32x16 now = load(line.x + c, lanes);
        now.store(line.keep + c);
        F32x16 total = F32x16::zero();
        for (int i = 0; i < old; ++i)
            total = fma(load(line.weight + i * line.weight_stride + c, lanes), F32x16::load(line.past[i] + c), total);
        total = fma(load(line.weight + old * line.weight_stride + c, lanes), now, total);
        store(silu(total), line.y + c, lanes);
    });
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const int taps = l.as<Params>().taps, old = taps - 1, cols = l.in[0].cols, step = chunk_cols(l, batch);
    const int first = chunk * step, n = std::min(step, cols - first);
    const auto* weight = reinterpret_cast<const float*>(l.shared.data) + first;
    const StateLayer& states = *l.in[2].state;
    float* ring = scratch.get(static_cast<size_t>(taps) * static_cast<size_t>(step));
    for (int s = 0; s < batch.n_sequences; ++s) {
        const int begin = batch.seq_start[s], end = batch.seq_start[s + 1];
        if (begin == end) continue;
        float* state = reinterpret_cast<float*>(states.bytes.data) + batch.state_slot[s] * states.floats_per_slot + first;
        for (int i = 0; i < old; ++i) {
            if (batch.positions[begin] == 0)
                std::fill_n(ring + i * step, n, 0.0f);
            else
                std::copy_n(state + int64_t{i} * cols, n, ring + i * step);
        }
        int oldest = 0;  // which row of the ring is tap 0; the one before it is free for the row of the token
        for (int t = begin; t < end; ++t) {
            const float* past[kMaxTaps];
            for (int i = 0; i < old; ++i) past[i] = ring + (oldest + i) % taps * step;
            Line line{l.in[0].row(t) + first, weight, cols, past, ring + (oldest + old) % taps * step, l.out[0].row(t) + first, n};
            if (taps == 4)
                convolve(line, std::integral_constant<int, 4>());
            else
                convolve(line, taps);
            oldest = oldest + 1 == taps ? 0 : oldest + 1;
        }
        for (int i = 0; i < old; ++i) std::copy_n(ring + (oldest + i) % taps * step, n, state + int64_t{i} * cols);
    }
}

}  // namespace

const Kernel conv_silu_kernel{"conv_silu", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
