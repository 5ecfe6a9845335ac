// delta_rule: for each value head, token by token (Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464)
//
//     g = exp(a softplus(alpha + bias)),  b = sigmoid(beta),  q, k = q / |q| / sqrt(k_dim), k / |k|
//     S = g S,  d = b (v - S^T k),  S = S + k d^T,  o = S^T q
//
// computed in the chunkwise form of section 3.3, with the state slots of head_slot.h. With the attribute
// `per_channel`, alpha, bias and g have an element for each row of S (Kimi Delta Attention, Kimi Team 2025,
// arXiv:2510.26692), and with `floor`, g = exp(floor sigmoid(a (alpha + bias))).
//
// A task is one value head of one sequence and writes only its own part of the slot. Lanes are columns of S
// or rows of a chunk.
#include "delta_math.h"
#include "head_slot.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::delta_rule;

constexpr float kEps = 1e-6f;  // added to the sum of squares of q and k

// qkv is [q of each key head | k of each key head | v of each value head]; beta has one column and decay one
// value for each value head, alpha has `channels` columns and decay_bias as many values.
struct Params : HeadShape {
    bool grouped;
    float floor;  // of log g, 0 for none
    int key_head(int head) const { return grouped ? head / (n_v_heads / n_k_heads) : head % n_k_heads; }
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    Params& p = l.as<Params>();
    p.read(l, attrs);
    p.grouped = whole(l, attrs, "grouped", 0, 1) != 0;
    require_rows(l, l.in[in::qkv], "qkv", RowFormat::f32, 2 * p.k_cols() + p.v_cols());
    p.floor = static_cast<float>(attrs.get("floor", 0));
    require_rows(l, l.in[in::alpha], "alpha", RowFormat::f32, p.n_v_heads * p.channels);
    require_rows(l, l.in[in::beta], "beta", RowFormat::f32, p.n_v_heads);
    require_vector(l, l.in[in::decay], "a", p.n_v_heads);
    require_vector(l, l.in[in::decay_bias], "bias", p.n_v_heads * p.channels);
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
    float* row;   // [k_dim]: the decay of each channel over a row, or over all rows of the chunk

    static size_t scratch_floats(const Params& p) {
        return static_cast<size_t>(kChunk) * static_cast<size_t>(3 * p.k_dim + 2 * p.v_dim + 2 * kChunk) +
               static_cast<size_t>(p.k_dim);
    }

    Head(const Launch& launch, int head_, float* scratch) : l(launch), p(launch.as<Params>()), head(head_) {
        rows = scratch;
        past = rows + int64_t{2 * kChunk} * p.k_dim;
        near = past + int64_t{2 * kChunk} * p.v_dim;
        left = near + 2 * kChunk * kChunk;
        row = left + int64_t{kChunk} * p.k_dim;
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
        float *S = slot.S, *keys = slot.keys, *d = slot.d;
        const float q_scale = 1.0f / std::sqrt(static_cast<float>(p.k_dim));
        float beta[kChunk] = {}, whole[kChunk];
        for (int i = 0; i < n; ++i) {
            float* k_row = rows + int64_t{i} * p.k_dim;
            unit(k(at + i), 1.0f, k_row);
            unit(q(at + i), q_scale, rows + int64_t{n + i} * p.k_dim);
            for (int c = 0; c < p.k_dim; ++c) keys[c * kChunk + old + i] = k_row[c];
            beta[i] = l.in[in::beta].row(at + i)[head];
        }
        sigmoid(F32x16::load(beta)).store(beta);
        const float factor =
            p.channels > 1 ? decay_channels(slot, at, old, n, whole) : decay_heads(slot, at, old, n, whole);

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
        multiply({left, kChunk, d, p.v_dim, slot.next(p, chunk), p.v_dim, kChunk, factor, S,
                  p.channels > 1 ? row : nullptr},
                 p.k_dim, p.v_dim);
    }

    // Returns g of lanes of alpha and of the bias.
    F32x16 decay(F32x16 alpha, F32x16 bias) const {
        const F32x16 a = F32x16::set1(l.in[in::decay].tensor->vector()[head]);
        if (p.floor != 0) return exp(F32x16::set1(p.floor) * sigmoid(a * (alpha + bias)));
        return exp(a * softplus(alpha + bias));
    }

    // Computes `past`, `near` and `whole` (the decay of S up to each new row) for one decay a head, and at
    // the end of a chunk `left`. Returns the decay of S over all rows.
    float decay_heads(const HeadSlot& slot, int at, int old, int n, float* whole) const {
        float alpha[kChunk] = {}, new_g[kChunk];
        for (int i = 0; i < n; ++i) alpha[i] = l.in[in::alpha].row(at + i)[head];
        decay(F32x16::load(alpha), F32x16::set1(l.in[in::decay_bias].tensor->vector()[head])).store(new_g);
        std::copy_n(new_g, n, slot.g + old);

        multiply({rows, p.k_dim, slot.S, p.v_dim, past, p.v_dim, p.k_dim}, 2 * n, p.v_dim);
        multiply({rows, p.k_dim, slot.keys, kChunk, near, kChunk, p.k_dim}, 2 * n, kChunk);

        Decays decays;
        for (int t = 0; t < old + n; ++t) {
            decays.add(t, slot.g[t]);
            if (t < old) continue;
            const int i = t - old;
            whole[i] = decays.whole;
            for (float* products : {near + i * kChunk, near + (n + i) * kChunk})
                (F32x16::load(products) * decays.to_row).store(products);
        }
        if (old + n == kChunk)
            for (int c = 0; c < p.k_dim; ++c)
                (F32x16::load(slot.keys + c * kChunk) * decays.to_row).store(left + c * kChunk);
        return decays.whole;
    }

    // The same for a decay of each channel. `left` has the keys with the decay up to the current row, lane j
    // that of row j, and `row` the decay of S. The new rows are scaled by it, so `whole` is 1. Returns 1.
    float decay_channels(const HeadSlot& slot, int at, int old, int n, float* whole) const {
        const int64_t first = int64_t{head} * p.k_dim;
        const float* bias = l.in[in::decay_bias].tensor->vector() + first;
        for (int i = 0; i < n; ++i) {
            const float* alpha = l.in[in::alpha].row(at + i) + first;
            for_lanes(0, p.k_dim, [&](int c, auto lanes) {
                store(decay(load(alpha + c, lanes), load(bias + c, lanes)), row + c, lanes);
            });
            for (int c = 0; c < p.k_dim; ++c) slot.g[c * kChunk + old + i] = row[c];
        }
        std::fill_n(row, p.k_dim, 1.0f);
        std::fill_n(left, int64_t{kChunk} * p.k_dim, 0.0f);
        for (int t = 0; t < old + n; ++t) {
            const int i = t - old;
            float *k_row = rows + int64_t{i} * p.k_dim, *q_row = rows + int64_t{n + i} * p.k_dim;
            F32x16 by_k = F32x16::zero(), by_q = F32x16::zero();
            for (int c = 0; c < p.k_dim; ++c) {
                const float g = slot.g[c * kChunk + t];
                const F32x16 key = F32x16::set1(slot.keys[c * kChunk + t]);
                const F32x16 decayed =
                    select_lanes(key, t, t + 1, F32x16::load(left + c * kChunk) * F32x16::set1(g));
                decayed.store(left + c * kChunk);
                row[c] *= g;
                if (t < old) continue;
                by_k = fma(F32x16::set1(k_row[c]), decayed, by_k);
                by_q = fma(F32x16::set1(q_row[c]), decayed, by_q);
                k_row[c] *= row[c];
                q_row[c] *= row[c];
            }
            if (t < old) continue;
            by_k.store(near + i * kChunk);
            by_q.store(near + (n + i) * kChunk);
            whole[i] = 1;
        }
        multiply({rows, p.k_dim, slot.S, p.v_dim, past, p.v_dim, p.k_dim}, 2 * n, p.v_dim);
        return 1;
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
