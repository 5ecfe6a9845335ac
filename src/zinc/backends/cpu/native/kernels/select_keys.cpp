// select_keys: the cached positions that each token attends to, by the scores of the lightning indexer.
//
// The score of a key is the sum over the index heads of weight * relu(query . key), in order of the heads.
// It depends on the token and the key only, so the selection does not depend on the batch, the number of
// threads or the parts of the keys. Of equal scores the first position wins, as in the reference.
//
// One chunk scores all keys of a token and selects. If there are few tokens, the keys of a token are divided
// into parts for several threads, which store their scores in `common`; the last part to finish selects.
#include <atomic>
#include <functional>
#include <new>
#include <numeric>

#include "attention_rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::select_keys;

struct Params {
    int n_heads, dim, top_k;
};

// The contents of Launch::shared: a Plan, then a counter of finished parts for each token. `step` is the
// number of keys of a part, `stride` that of the scores of a token in `common`.
struct Plan {
    int parts, step;
    int64_t stride;
    std::atomic<int>* counters() { return reinterpret_cast<std::atomic<int>*>(this + 1); }
};

constexpr int kMinStep = 4 * kKeyBlock;
constexpr int kMaxPosition = 1 << 24;  // floats are exact up to here

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    const KVLayer* kv = l.in[in::cache].kv;
    require(l, kv && kv->n_heads == 1, "cache must be a KV layer of one head");
    Params& p = l.as<Params>();
    p.n_heads = l.in[in::weights].cols;
    p.dim = kv->head_dim;
    p.top_k = whole(l, attrs, "top_k", 1, kMaxPosition);
    require_rows(l, l.in[in::weights], "weights", RowFormat::f32);
    require_rows(l, l.in[in::q], "q", RowFormat::f32, int64_t{p.n_heads} * p.dim);
    require_rows(l, l.out[0], "the output", RowFormat::f32, p.top_k);
}

int chunks(const Launch& l, const Batch& batch, int n_threads) {
    const size_t bytes = sizeof(Plan) + static_cast<size_t>(batch.n_tokens) * sizeof(std::atomic<int>);
    if (l.shared.size < bytes) l.shared = Bytes(bytes * 5 / 4);
    int n_keys = 0;
    for (int t = 0; t < batch.n_tokens; ++t) n_keys = std::max(n_keys, batch.positions[t] + 1);
    require(l, n_keys <= kMaxPosition, "a position is too large");
    Plan* plan = new (l.shared.data) Plan{1, n_keys, 0};
    const int wanted = n_threads == 1 ? 1 : 2 * n_threads / std::max(1, batch.n_tokens);
    if (wanted > 1 && n_keys > l.as<Params>().top_k) {
        const int step = (n_keys + wanted - 1) / wanted;
        plan->step = std::max(kMinStep, (step + kKeyBlock - 1) / kKeyBlock * kKeyBlock);
        plan->parts = (n_keys + plan->step - 1) / plan->step;
        plan->stride = int64_t{plan->parts} * plan->step;
        const size_t floats = static_cast<size_t>(batch.n_tokens * plan->stride);
        if (l.common->size < floats * sizeof(float)) *l.common = Bytes(floats * sizeof(float) * 5 / 4);
        for (int t = 0; t < batch.n_tokens; ++t) new (plan->counters() + t) std::atomic<int>(0);
    }
    return batch.n_tokens * plan->parts;
}

// Stores the scores of keys [first, last) of a token, rounded up to a whole tile. `first` is a multiple of
// kKeyBlock. `panel` has room for a block of keys, and `s` for kMaxRows rows of their products.
void score(const Launch& l, const Batch& batch, int token, int first, int last, float* panel, float* s,
           float* scores) {
    const Params& p = l.as<Params>();
    const KVLayer& kv = *l.in[in::cache].kv;
    const float *q = l.in[in::q].row(token), *weights = l.in[in::weights].row(token);
    for (int base = first; base < last; base += kKeyBlock) {
        const int n_tiles = (std::min(kKeyBlock, last - base) + kKvTile - 1) / kKvTile;
        FloatTile keys[kBlockTiles];
        F32x16 total[kBlockTiles];
        for (int j = 0; j < n_tiles; ++j) {
            const int position = base + j * kKvTile;
            const int block = kv_block(batch, kv, batch.sequence[token], position);
            float* to = panel + j * kKvTile * p.dim;
            attention_rows::widen_keys(kv, kv_k_tile(kv, block, 0, position), to);
            keys[j] = {to};
            total[j] = F32x16::zero();
        }
        for (int head = 0; head < p.n_heads; head += kMaxRows) {
            with_rows<kMaxRows>(std::min(kMaxRows, p.n_heads - head), [&](auto count) {
                const float* rows = q + head * p.dim;
                constexpr int tiles = vectors_for(count(), kBlockTiles);
                int j = 0;
                for (; j + tiles <= n_tiles; j += tiles)
                    dot_keys<count(), tiles>(rows, p.dim, keys + j, s + j * kKvTile);
                if constexpr (tiles > 1) {
                    for (; j < n_tiles; ++j) dot_keys<count(), 1>(rows, p.dim, keys + j, s + j * kKvTile);
                }
                for (int r = 0; r < count(); ++r) {
                    const F32x16 weight = F32x16::set1(weights[head + r]);
                    for (int i = 0; i < n_tiles; ++i) {
                        const F32x16 dot = F32x16::load(s + r * kKeyBlock + i * kKvTile);
                        total[i] = fma(weight, max(F32x16::zero(), dot), total[i]);
                    }
                }
            });
        }
        for (int j = 0; j < n_tiles; ++j) total[j].store(scores + base + j * kKvTile);
    }
}

// Stores the positions of the top_k largest of n scores in ascending order. `order` has room for n floats.
void select(float* scores, int n, int top_k, float* order, float* out) {
    for (int i = 0; i < n; ++i) {
        if (scores[i] != scores[i]) scores[i] = -std::numeric_limits<float>::infinity();
        order[i] = scores[i];
    }
    std::nth_element(order, order + top_k - 1, order + n, std::greater<float>());
    const float least = order[top_k - 1];
    int n_equal = top_k;  // positions of score `least` that are selected
    for (int i = 0; i < n; ++i) n_equal -= scores[i] > least;
    for (int i = 0; i < n; ++i) {
        if (scores[i] > least || (scores[i] == least && n_equal-- > 0)) *out++ = static_cast<float>(i);
    }
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params& p = l.as<Params>();
    Plan* plan = reinterpret_cast<Plan*>(l.shared.data);
    const int token = chunk / plan->parts, part = chunk % plan->parts;
    const int n = batch.positions[token] + 1;
    float* out = l.out[0].row(token);
    if (n <= p.top_k) {  // all of them
        if (part > 0) return;
        std::iota(out, out + n, 0.0f);
        std::fill(out + n, out + p.top_k, -1.0f);
        return;
    }
    const int first = part * plan->step, last = std::min(n, first + plan->step);
    if (first >= last) return;
    const size_t padded = (static_cast<size_t>(n) + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
    float* panel = scratch.get(kKeyBlock * static_cast<size_t>(p.dim + kMaxRows) + 2 * padded);
    float *s = panel + kKeyBlock * p.dim, *order = s + kKeyBlock * kMaxRows, *scores = order + padded;
    if (plan->parts > 1) scores = reinterpret_cast<float*>(l.common->data) + token * plan->stride;
    score(l, batch, token, first, last, panel, s, scores);
    const int parts = (n + plan->step - 1) / plan->step;
    if (parts > 1 && plan->counters()[token].fetch_add(1, std::memory_order_acq_rel) + 1 < parts) return;
    select(scores, n, p.top_k, order, out);
}

}  // namespace

const Kernel select_keys_kernel{"select_keys", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
