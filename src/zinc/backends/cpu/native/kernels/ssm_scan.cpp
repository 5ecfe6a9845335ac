// ssm_scan: for each head, token by token (Mamba-2, Dao and Gu 2024, arXiv:2405.21060)
//
//     dt = softplus(dt + bias),  g = exp(a dt),  S = g S + B (dt x)^T,  y = S^T C + skip x
//
// computed in chunks, with the state slots of head_slot.h: k is B and d is dt x.
//
// A task is one head of one sequence and writes only its own part of the slot. Lanes are columns of S or rows
// of a chunk.
#include "delta_math.h"
#include "head_slot.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::ssm_scan;

// xbc is [x of each head | B of each group | C of each group]; dt has one column, and decay, dt_bias and skip
// one value for each head.
void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    HeadShape& p = l.as<HeadShape>();
    p.read(l, attrs);
    require_rows(l, l.in[in::xbc], "xbc", RowFormat::f32, 2 * p.k_cols() + p.v_cols());
    require_rows(l, l.in[in::dt], "dt", RowFormat::f32, p.n_v_heads);
    require_vector(l, l.in[in::decay], "a", p.n_v_heads);
    require_vector(l, l.in[in::dt_bias], "bias", p.n_v_heads);
    require_vector(l, l.in[in::skip], "skip", p.n_v_heads);
    p.check_state(l, l.in[in::state]);
    require_rows(l, l.out[0], "y", RowFormat::f32, p.v_cols());
}

int chunks(const Launch& l, const Batch& batch, int) {
    return batch.n_sequences * l.as<HeadShape>().n_v_heads;
}

// Columns of one head, and scratch for the new rows of a chunk.
struct Head {
    const Launch& l;
    const HeadShape& p;
    int head;
    float* past;  // [kChunk][v_dim]: products of C with S
    float* near;  // [kChunk][kChunk]: products of C with B of the rows of the chunk
    float* left;  // [k_dim][kChunk]: B times the decay from its row to the end of the chunk

    static size_t scratch_floats(const HeadShape& p) {
        return static_cast<size_t>(kChunk) * static_cast<size_t>(p.v_dim + kChunk + p.k_dim);
    }

    const float* x(int t) const { return l.in[in::xbc].row(t) + int64_t{head} * p.v_dim; }
    const float* b(int t) const {
        return l.in[in::xbc].row(t) + p.v_cols() + int64_t{head / (p.n_v_heads / p.n_k_heads)} * p.k_dim;
    }
    const float* c(int t) const { return b(t) + p.k_cols(); }
    float value(size_t vector) const { return l.in[vector].tensor->vector()[head]; }

    void advance(const HeadSlot& slot, int at, int chunk, int old, int n) const {
        float dt[kChunk] = {}, g[kChunk], whole[kChunk];
        for (int i = 0; i < n; ++i) dt[i] = l.in[in::dt].row(at + i)[head];
        const F32x16 pace = softplus(F32x16::load(dt) + F32x16::set1(value(in::dt_bias)));
        pace.store(dt);
        exp(F32x16::set1(value(in::decay)) * pace).store(g);
        std::copy_n(g, n, slot.g + old);
        for (int i = 0; i < n; ++i) {
            for (int k = 0; k < p.k_dim; ++k) slot.keys[k * kChunk + old + i] = b(at + i)[k];
            const F32x16 factor = F32x16::set1(dt[i]);
            for (int col = 0; col < p.v_dim; col += 16)
                (factor * F32x16::load(x(at + i) + col)).store(slot.d + int64_t{old + i} * p.v_dim + col);
        }
        const int64_t stride = n > 1 ? c(at + 1) - c(at) : 0;
        multiply({c(at), stride, slot.S, p.v_dim, past, p.v_dim, p.k_dim}, n, p.v_dim);
        multiply({c(at), stride, slot.keys, kChunk, near, kChunk, p.k_dim}, n, kChunk);
        Decays decays;
        for (int t = 0; t < old + n; ++t) {
            decays.add(t, slot.g[t]);
            if (t < old) continue;
            whole[t - old] = decays.whole;
            float* row = near + (t - old) * kChunk;
            (F32x16::load(row) * decays.to_row).store(row);
        }
        for (int i = 0; i < n; ++i) mix(slot.d, at + i, i, old + i, whole[i]);
        if (old + n < kChunk) return;
        for (int k = 0; k < p.k_dim; ++k)
            (F32x16::load(slot.keys + k * kChunk) * decays.to_row).store(left + k * kChunk);
        multiply({left, kChunk, slot.d, p.v_dim, slot.next(p, chunk), p.v_dim, kChunk, decays.whole, slot.S},
                 p.k_dim, p.v_dim);
    }

    // Stores y of token row `token`, which is new row i and row t of its chunk.
    void mix(const float* d, int token, int i, int t, float whole) const {
        const F32x16 skip = F32x16::set1(value(in::skip)), of_past = F32x16::set1(whole);
        float* y = l.out[0].row(token) + int64_t{head} * p.v_dim;
        for (int col = 0; col < p.v_dim; col += 16) {
            F32x16 sum = of_past * F32x16::load(past + int64_t{i} * p.v_dim + col);
            for (int j = 0; j <= t; ++j)
                sum = fma(F32x16::set1(near[i * kChunk + j]), F32x16::load(d + int64_t{j} * p.v_dim + col),
                          sum);
            fma(skip, F32x16::load(x(token) + col), sum).store(y + col);
        }
    }
};

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const HeadShape& p = l.as<HeadShape>();
    float* past = scratch.get(Head::scratch_floats(p));
    float* near = past + int64_t{kChunk} * p.v_dim;
    const Head head{l, p, chunk % p.n_v_heads, past, near, near + kChunk * kChunk};
    for_chunks(p, batch, *l.in[in::state].state, chunk / p.n_v_heads, head.head,
               [&](const HeadSlot& slot, int at, int index, int old, int n) {
                   head.advance(slot, at, index, old, n);
               });
}

}  // namespace

const Kernel ssm_scan_kernel{"ssm_scan", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
