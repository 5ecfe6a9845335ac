// causal_conv: y[t] = f(bias + sum over taps i of weight[i] * x[t - (taps - 1) + i]) for each column, where f
// is SiLU or the identity.
//
// A chunk is a run of columns over all rows of the step. It processes the rows of a sequence from the last to
// the first: y[t] reads no row of x after t, so y may be stored in place of x. Rows before the first row of
// the step come from the state.
//
// The state is the last taps - 1 rows of x, oldest first. With the attribute `rollback` it is a ring of
// taps - 1 + rollback rows, in which the row of position p is row p mod (taps - 1 + rollback). So a sequence
// can continue from any of the last `rollback` positions.
#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::causal_conv;

constexpr int kMaxTaps = 64, kMaxRollback = 64;
constexpr int kStep = 64;        // the columns of a chunk are a multiple of this
constexpr int kElements = 2048;  // fewest elements of a chunk

// weight is [cols][taps]; the state is [taps - 1 + rollback][cols]. y may alias x.
struct Params {
    int taps, rollback;
    bool silu;
    int state_rows() const { return taps - 1 + rollback; }
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    const int cols = l.in[in::x].cols;
    require_rows(l, l.in[in::x], "x", RowFormat::f32, cols);
    require_rows(l, l.out[0], "y", RowFormat::f32, cols);
    Params& p = l.as<Params>();
    const int taps = p.taps = whole(l, attrs, "taps", 2, kMaxTaps);
    p.rollback = attrs.get("rollback", 0) == 0 ? 0 : whole(l, attrs, "rollback", 1, kMaxRollback);
    p.silu = whole(l, attrs, "silu", 0, 1) != 0;
    require_vector(l, l.in[in::weight], "weight", int64_t{cols} * taps);
    if (l.in[in::bias]) require_vector(l, l.in[in::bias], "bias", cols);
    require(l, l.in[in::state].state != nullptr, "needs a state");
    require(l, l.in[in::state].state->floats_per_slot == int64_t{cols} * p.state_rows(),
            "the state must hold " + std::to_string(p.state_rows()) + " rows of x");
    // Transposed to [taps][cols], so that lanes are columns.
    l.shared = Bytes(static_cast<size_t>(cols) * static_cast<size_t>(taps) * sizeof(float));
    auto* transposed = reinterpret_cast<float*>(l.shared.data);
    const float* weight = l.in[in::weight].tensor->vector();
    for (int c = 0; c < cols; ++c)
        for (int i = 0; i < taps; ++i) transposed[i * cols + c] = weight[c * taps + i];
}

// Number of columns of a chunk: the most that still leave work for all threads, because each row is in
// another page.
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
    const float* bias;  // null without any
    bool silu;
    float* y;
    const float* next;  // a row that is read soon, to prefetch
    int n;
};

template <class Taps>
void convolve(const Line& line, Taps taps) {
    for_lanes(0, line.n, [&](int c, auto lanes) {
        __builtin_prefetch(line.next + c);
        F32x16 total = line.bias ? load(line.bias + c, lanes) : F32x16::zero();
        for (int i = 0; i < taps; ++i)
            total =
                fma(load(line.weight + i * line.weight_stride + c, lanes), load(line.x[i] + c, lanes), total);
        store(line.silu ? silu(total) : total, line.y + c, lanes);
    });
}

// The rows of x that are stored for one sequence, from the first column of a chunk on.
struct Stored {
    float* rows;
    int64_t stride;
    int ring;  // number of rows; 0 if the rows are the last ones before `end`, oldest first
    int n_old;
    // Returns the row of a position. end: the position after the last one in the state.
    float* row(int position, int end) const {
        return rows + (ring ? position % ring : position - (end - n_old)) * stride;
    }
};

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params& p = l.as<Params>();
    const int taps = p.taps, old = taps - 1, cols = l.in[in::x].cols, step = chunk_cols(l, batch);
    const int first = chunk * step, n = std::min(step, cols - first);
    const auto* weight = reinterpret_cast<const float*>(l.shared.data) + first;
    const float* bias = l.in[in::bias] ? l.in[in::bias].tensor->vector() + first : nullptr;
    const StateLayer& states = *l.in[in::state].state;
    float* before = scratch.get(static_cast<size_t>(old) * static_cast<size_t>(step));
    for (int s = 0; s < batch.n_sequences; ++s) {
        const int begin = batch.seq_start[s], end = batch.seq_start[s + 1];
        if (begin == end) continue;
        float* slot = reinterpret_cast<float*>(states.bytes.data) +
                      batch.state_slot[s] * states.floats_per_slot + first;
        const Stored stored{slot, cols, p.rollback ? p.state_rows() : 0, old};
        const int start = batch.positions[begin], stop = start + end - begin;
        for (int i = 0, at = start - old; i < old; ++i, ++at) {
            if (at < 0)
                std::fill_n(before + i * step, n, 0.0f);
            else
                std::copy_n(stored.row(at, start), n, before + i * step);
        }
        auto row = [&](int t) -> const float* {
            return t < begin ? before + (old + t - begin) * step : l.in[in::x].row(t) + first;
        };
        // Stored before y overwrites x. Rows of a ring that precede the step are in place.
        const int kept = p.rollback ? std::min(end - begin, p.state_rows()) : old;
        for (int t = end - kept; t < end; ++t) std::copy_n(row(t), n, stored.row(stop - (end - t), stop));
        const float* x[kMaxTaps];
        for (int t = end - 1; t >= begin; --t) {
            for (int i = 0; i < taps; ++i) x[i] = row(t - old + i);
            const Line line{
                x, weight, cols, bias, p.silu, l.out[0].row(t) + first, row(std::max(begin - old, t - taps)),
                n};
            if (taps == 4)
                convolve(line, std::integral_constant<int, 4>());
            else
                convolve(line, taps);
        }
    }
}

}  // namespace

const Kernel causal_conv_kernel{"causal_conv", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
