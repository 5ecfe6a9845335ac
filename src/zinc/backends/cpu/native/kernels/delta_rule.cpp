// delta_rule: for each value head, token by token (Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464)
//
//     g = exp(a softplus(alpha + bias)),  b = sigmoid(beta),  q, k = q / |q| / sqrt(k_dim), k / |k|
//     S = g S,  d = b (v - S^T k),  S = S + k d^T,  o = S^T q
//
// computed in the chunkwise form of section 3.3. Positions [16 i, 16 i + 16) form a chunk, however a prompt
// was split into steps. The state slot holds S as it was before the chunk, and k, d and g of the rows of the
// chunk so far. A row depends on S and on earlier rows of its chunk only. Therefore one code path gives the
// same bits for a whole prompt, a split prompt and single tokens, and decode writes S only once in sixteen
// tokens.
//
// State slot, for each value head:
//
//     S [k_dim][v_dim]  |  k [k_dim][16]  |  d [16][v_dim]  |  g [16]
//
// With the attribute `rollback`, the slot is two of these halves, each for all value heads. Chunk c reads S
// from half c mod 2 and keeps its k, d and g there; its end writes the new S to the other half. So S before a
// chunk stays valid until the next chunk ends, and a sequence can continue from any of the last 16 positions.
//
// A task is one value head of one sequence and writes only its own part of the slot. Lanes are columns of S
// or rows of a chunk.
#include <algorithm>

#include "delta_math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::delta_rule;

constexpr int kChunk = 16;     // rows of a chunk, one for each lane
constexpr float kEps = 1e-6f;  // added to the sum of squares of q and k
constexpr int kMaxHeads = 1 << 12, kMaxDim = 1 << 12;

// qkv is [q of each key head | k of each key head | v of each value head]; alpha and beta have one column and
// decay and decay_bias one value for each value head.
struct Params {
    int n_k_heads, n_v_heads, k_dim, v_dim;
    bool grouped;
    bool rollback;
    int key_head(int head) const { return grouped ? head / (n_v_heads / n_k_heads) : head % n_k_heads; }
    int64_t head_floats() const { return int64_t{k_dim} * v_dim + kChunk * (int64_t{k_dim} + v_dim + 1); }
    int64_t half_floats() const { return n_v_heads * head_floats(); }
    int64_t slot_floats() const { return rollback ? 2 * half_floats() : half_floats(); }
    // Floats from the start of a slot to the half of a chunk.
    int64_t half_of(int chunk) const { return rollback ? chunk % 2 * half_floats() : 0; }
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    Params& p = l.as<Params>();
    p.n_k_heads = whole(l, attrs, "n_k_heads", 1, kMaxHeads);
    p.n_v_heads = whole(l, attrs, "n_v_heads", 1, kMaxHeads);
    p.k_dim = whole(l, attrs, "k_dim", 1, kMaxDim);
    p.v_dim = whole(l, attrs, "v_dim", 1, kMaxDim);
    p.grouped = whole(l, attrs, "grouped", 0, 1) != 0;
    p.rollback = attrs.get("rollback", 0) != 0 && whole(l, attrs, "rollback", 1, kChunk) > 0;
    require(l, p.n_v_heads % p.n_k_heads == 0, "the value heads must be a multiple of the key heads");
    require(l, p.v_dim % 16 == 0, "v_dim must be a multiple of 16");
    const int64_t v_cols = int64_t{p.n_v_heads} * p.v_dim;
    require_rows(l, l.in[in::qkv], "qkv", RowFormat::f32, 2 * int64_t{p.n_k_heads} * p.k_dim + v_cols);
    require_rows(l, l.in[in::alpha], "alpha", RowFormat::f32, p.n_v_heads);
    require_rows(l, l.in[in::beta], "beta", RowFormat::f32, p.n_v_heads);
    require_vector(l, l.in[in::decay], "a", p.n_v_heads);
    require_vector(l, l.in[in::decay_bias], "bias", p.n_v_heads);
    require(l, l.in[in::state].state != nullptr, "needs a state");
    require(l, l.in[in::state].state->floats_per_slot == p.slot_floats(),
            "the state must hold " + std::to_string(p.slot_floats()) + " floats a sequence");
    require_rows(l, l.out[0], "o", RowFormat::f32, v_cols);
}

int chunks(const Launch& l, const Batch& batch, int) { return batch.n_sequences * l.as<Params>().n_v_heads; }

// One value head of one sequence: its part of the state slot for the current chunk, and scratch for the new
// rows of the chunk.
struct Head {
    const Launch& l;
    const Params& p;
    int head;
    float* slot;  // part of the head in the first half of the state slot
    float *S, *keys, *d, *g;
    float* rows;  // [2 kChunk][k_dim]: k of the new rows, then q
    float* past;  // [2 kChunk][v_dim]: products of `rows` with S
    float* near;  // [2 kChunk][kChunk]: products of `rows` with k of the rows of the chunk
    float* left;  // [k_dim][kChunk]: k times the decay from its row to the end of the chunk

    static size_t scratch_floats(const Params& p) {
        return static_cast<size_t>(kChunk) * static_cast<size_t>(3 * p.k_dim + 2 * p.v_dim + 2 * kChunk);
    }

    Head(const Launch& launch, int head_, float* slots, float* scratch)
        : l(launch), p(launch.as<Params>()), head(head_), slot(slots + head_ * p.head_floats()) {
        rows = scratch;
        past = rows + int64_t{2 * kChunk} * p.k_dim;
        near = past + int64_t{2 * kChunk} * p.v_dim;
        left = near + 2 * kChunk * kChunk;
    }

    void enter(int chunk) {
        S = slot + p.half_of(chunk);
        keys = S + int64_t{p.k_dim} * p.v_dim;
        d = keys + int64_t{p.k_dim} * kChunk;
        g = d + int64_t{p.v_dim} * kChunk;
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
    void advance(int at, int chunk, int old, int n) {
        enter(chunk);
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

        // decay[j] is the product of g over the rows after j up to row t; `total` is the product over the
        // whole chunk. Products of factors below one neither overflow nor cancel, unlike differences of sums
        // of log g.
        F32x16 decay = F32x16::zero();
        float total = 1;
        for (int t = 0; t < old + n; ++t) {
            decay = select_lanes(F32x16::set1(1.0f), t, t + 1, decay * F32x16::set1(g[t]));
            total = total * g[t];
            if (t < old) continue;
            const int i = t - old;
            whole[i] = total;
            for (float* row : {near + i * kChunk, near + (n + i) * kChunk})
                (F32x16::load(row) * decay).store(row);
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
        for (int c = 0; c < p.k_dim; ++c) (F32x16::load(keys + c * kChunk) * decay).store(left + c * kChunk);
        float* next = slot + p.half_of(chunk + 1);
        multiply({left, kChunk, d, p.v_dim, next, p.v_dim, kChunk, total, S}, p.k_dim, p.v_dim);
    }
};

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params& p = l.as<Params>();
    const int sequence = chunk / p.n_v_heads;
    const int first = batch.seq_start[sequence], last = batch.seq_start[sequence + 1];
    if (first == last) return;
    const StateLayer& states = *l.in[in::state].state;
    float* slot =
        reinterpret_cast<float*>(states.bytes.data) + batch.state_slot[sequence] * states.floats_per_slot;
    Head head(l, chunk % p.n_v_heads, slot, scratch.get(Head::scratch_floats(p)));
    if (batch.positions[first] == 0) std::fill_n(head.slot, int64_t{p.k_dim} * p.v_dim, 0.0f);
    for (int at = first; at < last;) {
        const int position = batch.positions[at], old = position % kChunk,
                  n = std::min(kChunk - old, last - at);
        head.advance(at, position / kChunk, old, n);
        at += n;
    }
}

}  // namespace

const Kernel delta_rule_kernel{"delta_rule", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
