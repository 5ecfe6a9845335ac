// wkv7: the recurrence of RWKV-7 for each head, token by token (Peng et al. 2025, arXiv:2503.14456)
//
//     g = exp(log_decay sigmoid(w)),  a = sigmoid(a),  v = v + sigmoid(mix) (first - v)
//     c = k * removal / |k * removal|,  k = k (1 + (a - 1) scaling)
//     S = g S - (c * a) (S^T c)^T + k v^T,  o = S^T r,  e = (r . (bonus * k)) v
//
// A task is a head of one sequence. Lanes are columns of S [head_dim][head_dim], which stays in cache over
// all rows. With the attribute `rollback` the slot is a ring of 1 + rollback states: that after position p is
// state p mod (1 + rollback). So a sequence can continue from any of the last `rollback` positions.
#include <algorithm>
#include <cmath>

#include "../unroll.h"
#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::wkv7;

constexpr int kMaxDim = 256, kMaxRollback = 64, kLanes = 16;
// Constants of zinc.ops.wkv.
constexpr float kLogDecay = -0.606531f, kLeastLength = 1e-12f;

struct Params {
    int dim, ring;
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    Params& p = l.as<Params>();
    const int cols = l.in[in::r].cols;
    p.dim = whole(l, attrs, "head_dim", kLanes, kMaxDim);
    p.ring = 1 + (attrs.get("rollback", 0) == 0 ? 0 : whole(l, attrs, "rollback", 1, kMaxRollback));
    require(l, p.dim % kLanes == 0 && cols % p.dim == 0, "heads must be multiples of 16 wide");
    require_rows(l, l.in[in::r], "r", RowFormat::f32, cols);
    require_rows(l, l.in[in::w], "w", RowFormat::f32, cols);
    require_rows(l, l.in[in::k], "k", RowFormat::f32, cols);
    require_rows(l, l.in[in::v], "v", RowFormat::f32, cols);
    require_rows(l, l.in[in::a], "a", RowFormat::f32, cols);
    if (l.in[in::mix]) {
        require_rows(l, l.in[in::first], "first", RowFormat::f32, cols);
        require_rows(l, l.in[in::mix], "mix", RowFormat::f32, cols);
    }
    require_vector(l, l.in[in::removal], "removal", cols);
    require_vector(l, l.in[in::scaling], "scaling", cols);
    require_vector(l, l.in[in::bonus], "bonus", cols);
    require(l, l.in[in::state].state != nullptr, "needs a state");
    const int64_t floats = int64_t{p.ring} * cols * p.dim;
    require(l, l.in[in::state].state->floats_per_slot == floats,
            "the state must hold " + std::to_string(floats) + " floats per sequence");
    require_rows(l, l.out[0], "y", RowFormat::f32, 2 * cols);
}

int chunks(const Launch& l, const Batch& batch, int) {
    return batch.n_sequences * (l.in[in::r].cols / l.as<Params>().dim);
}

// The factors of one token, each [dim].
struct Token {
    const float* r;
    float *g, *c, *removed, *k, *v;
};

// Computes the factors of row t for the head starting at column `col`, and stores e.
void prepare_token(const Launch& l, const Token& token, int t, int col, int dim) {
    auto vector = [&](size_t i, int c) { return F32x16::load(l.in[i].tensor->vector() + col + c); };
    auto row = [&](size_t i, int c) { return F32x16::load(l.in[i].row(t) + col + c); };
    const F32x16 one = F32x16::set1(1.0f);
    F32x16 squares = F32x16::zero(), shares = F32x16::zero();
    for (int c = 0; c < dim; c += kLanes) {
        const F32x16 k = row(in::k, c), rate = sigmoid(row(in::a, c));
        exp(F32x16::set1(kLogDecay) * sigmoid(row(in::w, c))).store(token.g + c);
        const F32x16 removal = k * vector(in::removal, c);
        const F32x16 scaled = k * fma(rate - one, vector(in::scaling, c), one);
        squares = fma(removal, removal, squares);
        shares = fma(row(in::r, c) * scaled, vector(in::bonus, c), shares);
        removal.store(token.c + c);
        (removal * rate).store(token.removed + c);
        scaled.store(token.k + c);
    }
    const F32x16 length = F32x16::set1(1.0f / std::max(std::sqrt(sum(squares)), kLeastLength));
    const F32x16 share = F32x16::set1(sum(shares));
    float* e = l.out[0].row(t) + l.in[in::r].cols + col;
    for (int c = 0; c < dim; c += kLanes) {
        (F32x16::load(token.c + c) * length).store(token.c + c);
        (F32x16::load(token.removed + c) * length).store(token.removed + c);
        F32x16 v = row(in::v, c);
        if (l.in[in::mix]) v = fma(sigmoid(row(in::mix, c)), row(in::first, c) - v, v);
        v.store(token.v + c);
        (share * v).store(e + c);
    }
}

// Updates kBlocks x 16 columns of S starting at column `col`, and stores their part of o.
template <int kBlocks>
void update(const Token& token, float* state, int dim, int col, float* o) {
    F32x16 seen[kBlocks], v[kBlocks], out[kBlocks];
    unroll<kBlocks>([&](auto b) {
        seen[b] = out[b] = F32x16::zero();
        v[b] = F32x16::load(token.v + col + kLanes * b);
    });
    const float* before = state + col;
    for (int i = 0; i < dim; ++i, before += dim) {
        const F32x16 c = F32x16::set1(token.c[i]);
        unroll<kBlocks>([&](auto b) { seen[b] = fma(c, F32x16::load(before + kLanes * b), seen[b]); });
    }
    float* row = state + col;
    for (int i = 0; i < dim; ++i, row += dim) {
        const F32x16 g = F32x16::set1(token.g[i]), k = F32x16::set1(token.k[i]);
        const F32x16 removed = F32x16::set1(-token.removed[i]), r = F32x16::set1(token.r[i]);
        unroll<kBlocks>([&](auto b) {
            const F32x16 kept = fma(removed, seen[b], g * F32x16::load(row + kLanes * b));
            const F32x16 next = fma(k, v[b], kept);
            next.store(row + kLanes * b);
            out[b] = fma(r, next, out[b]);
        });
    }
    unroll<kBlocks>([&](auto b) { out[b].store(o + col + kLanes * b); });
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const int cols = l.in[in::r].cols, heads = cols / p.dim;
    const int sequence = chunk / heads, col = chunk % heads * p.dim;
    const int first = batch.seq_start[sequence], last = batch.seq_start[sequence + 1];
    if (first == last) return;
    const StateLayer& states = *l.in[in::state].state;
    const int64_t n = int64_t{p.dim} * p.dim, whole = int64_t{cols} * p.dim;
    float* slot = reinterpret_cast<float*>(states.bytes.data) +
                  batch.state_slot[sequence] * states.floats_per_slot + int64_t{col} * p.dim;
    float* now = scratch.get(static_cast<size_t>(n + 5 * p.dim));
    float* parts = now + n;
    Token token{nullptr, parts, parts + p.dim, parts + 2 * p.dim, parts + 3 * p.dim, parts + 4 * p.dim};
    const int position = batch.positions[first];
    if (position == 0)
        std::fill_n(now, n, 0.0f);
    else
        std::copy_n(slot + (position - 1) % p.ring * whole, n, now);
    for (int t = first; t < last; ++t) {
        token.r = l.in[in::r].row(t) + col;
        prepare_token(l, token, t, col, p.dim);
        float* o = l.out[0].row(t) + col;
        int at = 0;
        for (; at + 4 * kLanes <= p.dim; at += 4 * kLanes) update<4>(token, now, p.dim, at, o);
        for (; at < p.dim; at += kLanes) update<1>(token, now, p.dim, at, o);
        if (last - t <= p.ring) std::copy_n(now, n, slot + (position + t - first) % p.ring * whole);
    }
}

}  // namespace

const Kernel wkv7_kernel{"wkv7", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
