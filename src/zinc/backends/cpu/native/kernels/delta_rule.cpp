// delta_rule: for each value head, token by token (Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464)
//
//     g = exp(a softplus(alpha + bias)),  b = sigmoid(beta),  q, k = q / |q| / sqrt(k_dim), k / |k|
//     S = g S,  d = b (v - S^T k),  S = S + k d^T,  o = S^T q
//
// computed in the chunkwise form of section 3.3, with the state slots of head_slot.h.
//
// A task is one value head of one sequence and writes only its own part of the slot. Lanes are columns of S
// or rows of a chunk.
#include "delta_math.h"
#include "head_slot.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::delta_rule;

constexpr float kEps = 1e-6f;  // added to the sum of squares of q and k

// qkv is [q of each key head | k of each key head | v of each value head]; alpha and beta have one column and
// decay and decay_bias one value for each value head.
struct Params : HeadShape {
    bool grouped;
    int key_head(int head) const { return grouped ? head / (n_v_heads / n_k_heads) : head % n_k_heads; }
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    Params& p = l.as<Params>();
    p.read(l, attrs);
    p.grouped = whole(l, attrs, "grouped", 0, 1) != 0;
    require_rows(l, l.in[in::qkv], "qkv", RowFormat::f32, 2 * p.k_cols() + p.v_cols());
    require_rows(l, l.in[in::alpha], "alpha", RowFormat::f32, p.n_v_heads);
    require_rows(l, l.in[in::beta], "beta", RowFormat::f32, p.n_v_heads);
    require_vector(l, l.in[in::decay], "a", p.n_v_heads);
    require_vector(l, l.in[in::decay_bias], "bias", p.n_v_heads);
    p.check_state(l, l.in[in::state]);
    require_rows(l, l.out[0], "o", RowFormat::f32, p.v_cols());
}

int chunks(const Launch& l, const Batch& batch, int) { return batch.n_sequences * l.as<Params>().n_v_heads; }

// Columns of one value head, and scratch for the new rows of a chunk.
struct Head {
    const Launch& l;
    const Params& p;
    int head;
    float* rows;  // [2 kChunk][k_dim]: k of the new rows, then q
    float* past;  // [2 kChunk][v_dim]: products of `rows` with S
    float* near;  // [2 kChunk][kChunk]: products of `rows` with k of the rows of the chunk
    float* left;  // [k_dim][kChunk]: k times the decay from its row to the end of the chunk

    static size_t scratch_floats(const Params& p) {
        return static_cast<size_t>(kChunk) * static_cast<size_t>(3 * p.k_dim + 2 * p.v_dim + 2 * kChunk);
    }

    Head(const Launch& launch, int head_, float* scratch) : l(launch), p(launch.as<Params>()), head(head_) {
        rows = scratch;
        past = rows + int64_t{2 * kChunk} * p.k_dim;
        near = past + int64_t{2 * kChunk} * p.v_dim;
        left = near + 2 * kChunk * kChunk;
    }

    const float* k(int t) const { return q(t) + int64_t{p.n_k_heads} * p.k_dim; }
    const float* q(int t) const { return l.in[in::qkv].row(t) + int64_t{p.key_head(head)} * p.k_dim; }
    const float* v(int t) const {
        return l.in[in::qkv].row(t) + 2 * int64_t{p.n_k_heads} * p.k_dim + int64_t{head} * p.v_dim;
    }
    float* o(int t) const { return l.out[0].row(t) + int64_t{head} * p.v_dim; }

    // Stores x / |x| * scale.
    void unit(const float* x, float scale, float* to) const {
        const F32x16 factor = F32x16::set1(scale / std::sqrt(sum_squares(x, p.k_dim) + kEps));
        for_lanes(0, p.k_dim, [&](int i, auto lanes) { store(load(x + i, lanes) * factor, to + i, lanes); });
    }

    // Advances the state by token rows [at, at + n), which are rows [old, old + n) of `chunk`.
    void advance(const HeadSlot& slot, int at, int chunk, int old, int n) {
        float *S = slot.S, *keys = slot.keys, *d = slot.d, *g = slot.g;
        const float q_scale = 1.0f / std::sqrt(static_cast<float>(p.k_dim));
        float alpha[kChunk] = {}, beta[kChunk] = {}, whole[kChunk];
        for (int i = 0; i < n; ++i) {
            float* k_row = rows + int64_t{i} * p.k_dim;
            unit(k(at + i), 1.0f, k_row);
            unit(q(at + i), q_scale, rows + int64_t{n + i} * p.k_dim);
            for (int c = 0; c < p.k_dim; ++c) keys[c * kChunk + old + i] = k_row[c];
            alpha[i] = l.in[in::alpha].row(at + i)[head];
            beta[i] = l.in[in::beta].row(at + i)[head];
        }
        const F32x16 a = F32x16::set1(l.in[in::decay].tensor->vector()[head]);
        const F32x16 bias = F32x16::set1(l.in[in::decay_bias].tensor->vector()[head]);
        float new_g[kChunk];
        exp(a * softplus(F32x16::load(alpha) + bias)).store(new_g);
        std::copy_n(new_g, n, g + old);
        sigmoid(F32x16::load(beta)).store(beta);

        multiply({rows, p.k_dim, S, p.v_dim, past, p.v_dim, p.k_dim}, 2 * n, p.v_dim);
        multiply({rows, p.k_dim, keys, kChunk, near, kChunk, p.k_dim}, 2 * n, kChunk);

        Decays decays;
        for (int t = 0; t < old + n; ++t) {
            decays.add(t, g[t]);
            if (t < old) continue;
            const int i = t - old;
            whole[i] = decays.whole;
            for (float* row : {near + i * kChunk, near + (n + i) * kChunk})
                (F32x16::load(row) * decays.to_row).store(row);
        }

        const Triangle triangle{
            near, near + n * kChunk, past, past + int64_t{n} * p.v_dim, whole, beta, d, old, n, p.v_dim};
        for (int col = 0; col < p.v_dim; col += 16 * kProductBlocks) {
            const int blocks = std::min(kProductBlocks, (p.v_dim - col) / 16);
            unroll<kProductBlocks>([&](auto b) {
                if (blocks == b + 1)
                    solve_columns<b + 1>(
                        triangle, col, [&](int i) { return v(at + i); }, [&](int i) { return o(at + i); });
            });
        }

        if (old + n < kChunk) return;
        for (int c = 0; c < p.k_dim; ++c)
            (F32x16::load(keys + c * kChunk) * decays.to_row).store(left + c * kChunk);
        multiply({left, kChunk, d, p.v_dim, slot.next(p, chunk), p.v_dim, kChunk, decays.whole, S}, p.k_dim,
                 p.v_dim);
    }
};

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params& p = l.as<Params>();
    Head head(l, chunk % p.n_v_heads, scratch.get(Head::scratch_floats(p)));
    for_chunks(p, batch, *l.in[in::state].state, chunk / p.n_v_heads, head.head,
               [&](const HeadSlot& slot, int at, int index, int old, int n) {
                   head.advance(slot, at, index, old, n);
               });
}

}  // namespace

const Kernel delta_rule_kernel{"delta_rule", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
