// selective_scan: for each channel, token by token (Mamba, Gu and Dao 2023, arXiv:2312.00752)
//
//     dt = softplus(dt + bias),  S = exp(a dt) S + dt x B,  y = S . C + skip x
//
// A task is a block of 16 channels of one sequence, which are the lanes: S of a block is `size` vectors that
// stay in cache over all rows. The slot holds these blocks, S [blocks][size][16]. With the attribute
// `rollback` it is a ring of 1 + rollback such states: that after position p is state p mod (1 + rollback).
// So a sequence can continue from any of the last `rollback` positions.
#include <algorithm>

#include "delta_math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::selective_scan;

constexpr int kMaxSize = 256, kMaxRollback = 64, kLanes = 16;

struct Params {
    int size, ring;
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    Params& p = l.as<Params>();
    const int cols = l.in[in::x].cols;
    p.size = l.in[in::b].cols;
    p.ring = 1 + (attrs.get("rollback", 0) == 0 ? 0 : whole(l, attrs, "rollback", 1, kMaxRollback));
    require(l, p.size <= kMaxSize, "the states of channels are too large");
    require_rows(l, l.in[in::x], "x", RowFormat::f32, cols);
    require_rows(l, l.in[in::dt], "dt", RowFormat::f32, cols);
    require_rows(l, l.in[in::b], "b", RowFormat::f32, p.size);
    require_rows(l, l.in[in::c], "c", RowFormat::f32, p.size);
    require_vector(l, l.in[in::decay], "a", int64_t{cols} * p.size);
    require_vector(l, l.in[in::dt_bias], "bias", cols);
    require_vector(l, l.in[in::skip], "skip", cols);
    require(l, cols % kLanes == 0, "the channels must be a multiple of 16");
    require(l, l.in[in::state].state != nullptr, "needs a state");
    const int64_t floats = int64_t{p.ring} * cols * p.size;
    require(l, l.in[in::state].state->floats_per_slot == floats,
            "the state must hold " + std::to_string(floats) + " floats per sequence");
    require_rows(l, l.out[0], "y", RowFormat::f32, cols);
    // Transposed to [blocks][size][16], so that lanes are channels.
    l.shared = Bytes(static_cast<size_t>(cols) * static_cast<size_t>(p.size) * sizeof(float));
    auto* transposed = reinterpret_cast<float*>(l.shared.data);
    const float* decay = l.in[in::decay].tensor->vector();
    for (int c = 0; c < cols; ++c)
        for (int i = 0; i < p.size; ++i)
            transposed[(c / kLanes * p.size + i) * kLanes + c % kLanes] = decay[c * p.size + i];
}

int chunks(const Launch& l, const Batch& batch, int) {
    return batch.n_sequences * (l.in[in::x].cols / kLanes);
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const int cols = l.in[in::x].cols, blocks = cols / kLanes;
    const int sequence = chunk / blocks, block = chunk % blocks, col = block * kLanes;
    const int first = batch.seq_start[sequence], last = batch.seq_start[sequence + 1];
    if (first == last) return;
    const StateLayer& states = *l.in[in::state].state;
    const int64_t n = int64_t{p.size} * kLanes, whole = int64_t{cols} * p.size;
    float* slot = reinterpret_cast<float*>(states.bytes.data) +
                  batch.state_slot[sequence] * states.floats_per_slot + block * n;
    const auto* decay = reinterpret_cast<const float*>(l.shared.data) + block * n;
    const F32x16 bias = F32x16::load(l.in[in::dt_bias].tensor->vector() + col);
    const F32x16 skip = F32x16::load(l.in[in::skip].tensor->vector() + col);
    float* now = scratch.get(static_cast<size_t>(n));
    const int position = batch.positions[first];
    if (position == 0)
        std::fill_n(now, n, 0.0f);
    else
        std::copy_n(slot + (position - 1) % p.ring * whole, n, now);
    for (int t = first; t < last; ++t) {
        const F32x16 pace = softplus(F32x16::load(l.in[in::dt].row(t) + col) + bias);
        const F32x16 x = F32x16::load(l.in[in::x].row(t) + col), added = pace * x;
        const float *b = l.in[in::b].row(t), *c = l.in[in::c].row(t);
        F32x16 y = skip * x;
        for (int i = 0; i < p.size; ++i) {
            float* s = now + i * kLanes;
            const F32x16 kept = exp(F32x16::load(decay + i * kLanes) * pace) * F32x16::load(s);
            const F32x16 next = fma(added, F32x16::set1(b[i]), kept);
            next.store(s);
            y = fma(next, F32x16::set1(c[i]), y);
        }
        y.store(l.out[0].row(t) + col);
        if (last - t <= p.ring) std::copy_n(now, n, slot + (position + t - first) % p.ring * whole);
    }
}

}  // namespace

const Kernel selective_scan_kernel{"selective_scan", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
