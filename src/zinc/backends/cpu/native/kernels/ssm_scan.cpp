// ssm_scan: for each head, token by token (Mamba-2, Dao and Gu 2024, arXiv:2405.21060)
//
//     dt = softplus(dt + bias),  g = exp(a dt),  S = g S + B (dt x)^T,  y = S^T C + skip x
//
// computed in chunks, with the state slots of head_slot.h: k is B and d is dt x.
//
// A task is a few heads of one group and one sequence, and writes only their parts of the slot. Heads of a
// group share B and C, so a task transposes B and multiplies it with C once for each whole chunk. Lanes are
// columns of S or rows of a chunk.
#include "delta_math.h"
#include "head_slot.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::ssm_scan;

constexpr int kMixBlocks = 4;  // vectors of columns that are summed at once

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

// Returns the number of heads of a task: the most that still give each thread four tasks.
int heads_of_task(const Launch& l, const Batch& batch) {
    const HeadShape& p = l.as<HeadShape>();
    const int each = p.n_v_heads / p.n_k_heads;
    int n = std::clamp(batch.n_sequences * p.n_v_heads / (4 * l.n_threads), 1, each);
    while (each % n != 0) --n;
    return n;
}

int chunks(const Launch& l, const Batch& batch, int) {
    return batch.n_sequences * l.as<HeadShape>().n_v_heads / heads_of_task(l, batch);
}

// B of a whole chunk, and its products with C.
struct WholeChunk {
    float* keys;  // [k_dim][kChunk]
    float* near;  // [kChunk][kChunk]

    WholeChunk(const HeadShape& p, float* first, int i)
        : keys(first + i * floats(p)), near(keys + int64_t{p.k_dim} * kChunk) {}
    static int64_t floats(const HeadShape& p) { return kChunk * (int64_t{p.k_dim} + kChunk); }
};

// The whole chunks of a sequence in a step: `count` of them, starting at row `first`. With `rollback` the
// last chunk is not counted, because the slot must keep its k.
struct WholeChunks {
    int first, count;

    WholeChunks(const HeadShape& p, const Batch& batch, int sequence) {
        const int begin = batch.seq_start[sequence], end = batch.seq_start[sequence + 1];
        const int old = begin < end ? batch.positions[begin] % kChunk : 0;
        first = begin + (kChunk - old) % kChunk;
        count = std::max(0, (end - first) / kChunk - (p.rollback ? 1 : 0));
    }
    bool contain(int row) const { return row >= first && row < first + count * kChunk; }
};

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
    int64_t stride(int at, int n) const { return n > 1 ? c(at + 1) - c(at) : 0; }
    float value(size_t vector) const { return l.in[vector].tensor->vector()[head]; }

    // Prefetches x of token rows [first, last), whose lines are too far apart for the hardware prefetcher.
    void prefetch_x(int first, int last) const {
        for (int t = first; t < last; ++t)
            for (int col = 0; col < p.v_dim; col += 16) __builtin_prefetch(x(t) + col, 0, 2);
    }

    // Stores B of token rows [at, at + n) as columns of `keys` starting at column `old`.
    void transpose(int at, int old, int n, float* keys) const {
        for (int i = 0; i < n; ++i)
            for (int k = 0; k < p.k_dim; ++k) keys[k * kChunk + old + i] = b(at + i)[k];
    }

    // Stores the products of C of token rows [at, at + n) with `keys`.
    void multiply_keys(int at, int n, const float* keys, float* to) const {
        multiply({c(at), stride(at, n), keys, kChunk, to, kChunk, p.k_dim}, n, kChunk);
    }

    void make(int at, const WholeChunk& made) const {
        transpose(at, 0, kChunk, made.keys);
        multiply_keys(at, kChunk, made.keys, made.near);
    }

    // Advances the state by token rows [at, at + n), which are rows [old, old + n) of `chunk`. made: its B
    // and products if it is a whole chunk.
    void advance(const HeadSlot& slot, int at, int chunk, int old, int n, const WholeChunk* made) const {
        float dt[kChunk] = {}, g[kChunk], whole[kChunk];
        for (int i = 0; i < n; ++i) dt[i] = l.in[in::dt].row(at + i)[head];
        const F32x16 pace = softplus(F32x16::load(dt) + F32x16::set1(value(in::dt_bias)));
        pace.store(dt);
        exp(F32x16::set1(value(in::decay)) * pace).store(g);
        std::copy_n(g, n, slot.g + old);
        for (int i = 0; i < n; ++i) {
            const F32x16 factor = F32x16::set1(dt[i]);
            for (int col = 0; col < p.v_dim; col += 16)
                (factor * F32x16::load(x(at + i) + col)).store(slot.d + int64_t{old + i} * p.v_dim + col);
        }
        const float *keys = made ? made->keys : slot.keys, *products = made ? made->near : near;
        if (!made) {
            transpose(at, old, n, slot.keys);
            multiply_keys(at, n, keys, near);
        }
        multiply({c(at), stride(at, n), slot.S, p.v_dim, past, p.v_dim, p.k_dim}, n, p.v_dim);
        Decays decays;
        for (int t = 0; t < old + n; ++t) {
            decays.add(t, slot.g[t]);
            if (t < old) continue;
            whole[t - old] = decays.whole;
            const int row = (t - old) * kChunk;
            (F32x16::load(products + row) * decays.to_row).store(near + row);
        }
        for (int i = 0; i < n; ++i) mix(slot.d, at + i, i, old + i, whole[i]);
        if (old + n < kChunk) return;
        for (int k = 0; k < p.k_dim; ++k)
            (F32x16::load(keys + k * kChunk) * decays.to_row).store(left + k * kChunk);
        multiply({left, kChunk, slot.d, p.v_dim, slot.next(p, chunk), p.v_dim, kChunk, decays.whole, slot.S},
                 p.k_dim, p.v_dim);
    }

    // Stores y of token row `token`, which is new row i and row t of its chunk.
    void mix(const float* d, int token, int i, int t, float whole) const {
        for (int col = 0; col < p.v_dim; col += 16 * kMixBlocks) {
            const int blocks = std::min(kMixBlocks, (p.v_dim - col) / 16);
            unroll<kMixBlocks>([&](auto b) {
                if (blocks == b + 1) mix_columns<b + 1>(d, token, i, t, whole, col);
            });
        }
    }

    template <int kBlocks>
    void mix_columns(const float* d, int token, int i, int t, float whole, int col) const {
        const F32x16 skip = F32x16::set1(value(in::skip)), of_past = F32x16::set1(whole);
        float* y = l.out[0].row(token) + int64_t{head} * p.v_dim + col;
        F32x16 sum[kBlocks];
        unroll<kBlocks>(
            [&](auto b) { sum[b] = of_past * F32x16::load(past + int64_t{i} * p.v_dim + col + 16 * b); });
        d += col;
        for (int j = 0; j <= t; ++j, d += p.v_dim) {
            const F32x16 weight = F32x16::set1(near[i * kChunk + j]);
            unroll<kBlocks>([&](auto b) { sum[b] = fma(weight, F32x16::load(d + 16 * b), sum[b]); });
        }
        unroll<kBlocks>(
            [&](auto b) { fma(skip, F32x16::load(x(token) + col + 16 * b), sum[b]).store(y + 16 * b); });
    }
};

void run(const Launch& l, const Batch& batch, int task, Scratch& scratch) {
    const HeadShape& p = l.as<HeadShape>();
    const int n = heads_of_task(l, batch), tasks = p.n_v_heads / n;
    const int sequence = task / tasks, first = task % tasks * n;
    const WholeChunks whole(p, batch, sequence);
    const size_t own = Head::scratch_floats(p);
    float* past = scratch.get(own + static_cast<size_t>(whole.count * WholeChunk::floats(p)));
    float *near = past + int64_t{kChunk} * p.v_dim, *made = past + own;
    for (int i = 0; i < n; ++i) {
        const Head head{l, p, first + i, past, near, near + kChunk * kChunk};
        for (int c = 0; i == 0 && c < whole.count; ++c)
            head.make(whole.first + c * kChunk, WholeChunk(p, made, c));
        for_chunks(p, batch, *l.in[in::state].state, sequence, head.head,
                   [&](const HeadSlot& slot, int at, int index, int old, int rows) {
                       const int next = at + rows;
                       head.prefetch_x(next, std::min(next + kChunk, batch.seq_start[sequence + 1]));
                       if (!whole.contain(at)) return head.advance(slot, at, index, old, rows, nullptr);
                       const WholeChunk chunk(p, made, (at - whole.first) / kChunk);
                       head.advance(slot, at, index, old, rows, &chunk);
                   });
    }
}

}  // namespace

const Kernel ssm_scan_kernel{"ssm_scan", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
