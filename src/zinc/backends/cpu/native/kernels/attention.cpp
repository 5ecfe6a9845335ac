// attention: grouped-query attention over the KV cache, causal or over the whole sequence. One code path
// serves prefill, decode and verification.
//
// Keys are visited in blocks of 64 and splits of 256 at fixed absolute positions. The softmax is online
// within a split (Dao et al. 2022), and splits are merged in ascending order. So the result of a token
// depends on its own position and cache only, not on other sequences, the division of a prompt into steps or
// the number of threads.
//
// With the operand `keys`, a token that sees more positions than are selected is an item of its own, whose
// splits are runs of the selection. Its keys are gathered to panels of floats.
//
// Work is divided into items (runs of tokens of one sequence) x runs of KV heads x runs of splits (split-K).
// A run has several heads only if the item has few tokens and keys, as in a batch of short texts. The query
// heads of a KV head, and in prefill several tokens, share the loads of keys and values. If there are few
// tokens, the splits of an item go to different threads, which store their partial results in `common`; the
// chunk that finishes last merges them.
#include <atomic>
#include <new>

#include "attention_rows.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using namespace attention_rows;
using in = operands::attention;

constexpr int kItemRows = 96;  // most rows (tokens x query heads) of an item
constexpr int kPanelRows =
    16;  // with this many rows, keys and values are converted to floats once for all rows
constexpr int kStateFloats = sizeof(RowState) / sizeof(float);
constexpr int64_t kMaxPartialFloats = 16 << 20;
constexpr int kChunkScores = 4096;  // most scores of a chunk with several heads

struct Item {
    int sequence, first, n_tokens;  // token rows of the batch
    int first_split, n_splits, step, parts;
    int heads;         // KV heads (or pieces of their query heads) of a chunk
    int chunk;         // index of its first chunk
    int64_t partials;  // index of its first float in `common`, if parts > 1
};

// The contents of Launch::shared: a Plan, its items, then for each item a counter of finished parts for each
// head and a counter of finished chunks.
struct Plan {
    int n_items, n_chunks;
    int64_t staging;  // index in `common` of the f32 rows that wait for quantisation
    Item* items() { return reinterpret_cast<Item*>(this + 1); }
    const Item* items() const { return reinterpret_cast<const Item*>(this + 1); }
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    const KVLayer* kv = l.in[in::cache].kv;
    require(l, kv, "kv must be a KV layer");
    Params& p = l.as<Params>();
    p.n_heads = whole(l, attrs, "n_heads", 1, 1 << 16);
    require(l, p.n_heads % kv->n_heads == 0, "the heads of the cache must divide n_heads");
    p.queries = p.n_heads / kv->n_heads;
    p.dim = kv->head_dim;
    p.dim_v = kv->head_dim_v;
    p.window = static_cast<int>(attrs.get("window", 0));
    p.causal = attrs.get("causal", 1) != 0;
    p.top_k = l.in[in::keys] ? l.in[in::keys].cols : 0;
    p.chunked = attrs.get("chunked", 0) != 0;
    p.item_tokens = std::max(1, kItemRows / p.queries);
    p.item_rows = std::min(p.queries * p.item_tokens, kItemRows);
    p.pieces = (p.queries + kItemRows - 1) / kItemRows;
    p.piece_queries = (p.queries + p.pieces - 1) / p.pieces;
    const auto scale = static_cast<float>(attrs.get("scale"));
    const auto cap = static_cast<float>(attrs.get("softcap", 0));
    require(l, p.window >= 0 && cap >= 0, "window and softcap must not be negative");
    require(l, !p.chunked || (p.window > 0 && p.causal), "chunks need a size and causal attention");
    p.query_scale = cap > 0 ? scale / cap : scale * kLog2e;
    p.cap = cap * kLog2e;
    require_rows(l, l.in[in::q], "q", RowFormat::f32, int64_t{p.n_heads} * p.dim);
    if (l.in[in::sinks]) require_vector(l, l.in[in::sinks], "sinks", p.n_heads);
    if (l.in[in::slopes]) require_vector(l, l.in[in::slopes], "slopes", p.n_heads);
    require(l, !l.in[in::slopes] || cap == 0, "scores with slopes cannot be capped");
    if (p.top_k) require_rows(l, l.in[in::keys], "keys", RowFormat::f32);
    require(l, !p.top_k || (p.causal && !p.window && !l.in[in::slopes]),
            "selected keys need causal attention without window and slopes");
    require_output(l, l.out[0], "o", p.n_heads * p.dim_v);
}

// ---- division of a batch into items and chunks

template <class T>
T* grow(Bytes& bytes, size_t count) {
    if (bytes.size < count * sizeof(T)) bytes = Bytes(count * sizeof(T) * 5 / 4);
    return reinterpret_cast<T*>(bytes.data);
}

// Calls f(sequence, first token, last token + 1) for each item. The longest items come first: those at the
// end of a prompt, which see the most keys.
template <class F>
void each_item(const Params& p, const Batch& batch, F&& f) {
    for (int s = 0; s < batch.n_sequences; ++s) {
        for (int last = batch.seq_start[s + 1]; last > batch.seq_start[s];) {
            const int most = is_sparse(p, batch, last - 1) ? 1 : p.item_tokens;
            const int first = std::max(batch.seq_start[s], last - most);
            f(s, first, last);
            last = first;
        }
    }
}

int chunks(const Launch& l, const Batch& batch, int n_threads) {
    const Params& p = l.as<Params>();
    const int heads = l.in[in::cache].kv->n_heads * p.pieces;
    int n_items = 0;
    each_item(p, batch, [&](int, int, int) { ++n_items; });
    const size_t n_counters = static_cast<size_t>(n_items) * (static_cast<size_t>(heads) + 1);
    const size_t bytes =
        sizeof(Plan) + static_cast<size_t>(n_items) * sizeof(Item) + n_counters * sizeof(int);
    Plan* plan = reinterpret_cast<Plan*>(grow<std::byte>(l.shared, bytes));
    plan->n_items = n_items;

    Item* item = plan->items();
    int64_t n_splits = 0;
    each_item(p, batch, [&](int s, int first, int last) {
        *item = {s, first, last - first, first_key(p, batch.positions[first]) / kSplit, 0, 0, 1, 1, 0, 0};
        const int key = is_sparse(p, batch, first) ? p.top_k - 1 : last_key(p, batch, s, last - 1);
        item->n_splits = key / kSplit + 1 - item->first_split;
        const int64_t scores = int64_t{last - first} * p.queries * (key + 1);
        item->heads = static_cast<int>(std::clamp<int64_t>(kChunkScores / scores, 1, heads));
        n_splits += item->n_splits;
        ++item;
    });

    // About sixteen chunks for each thread balance the load. Items are split along the keys only if there are
    // few.
    const int64_t state = int64_t{p.item_rows} * (p.dim_v + kStateFloats);
    const bool whole_items = int64_t{n_items} * heads >= 8 * n_threads || n_threads == 1 ||
                             n_splits * heads * state > kMaxPartialFloats;
    const int step = static_cast<int>(std::max<int64_t>(1, n_splits * heads / (16 * n_threads)));
    const int most_heads = std::max(1, n_items * heads / (16 * n_threads));
    int64_t floats = 0;
    plan->n_chunks = 0;
    for (item = plan->items(); item != plan->items() + n_items; ++item) {
        item->step = whole_items ? item->n_splits : step;
        item->parts = (item->n_splits + item->step - 1) / item->step;
        item->heads = item->parts > 1 ? 1 : std::min(item->heads, most_heads);
        item->chunk = plan->n_chunks;
        item->partials = floats;
        if (item->parts > 1) floats += state * heads * item->n_splits;
        plan->n_chunks += (heads + item->heads - 1) / item->heads * item->parts;
    }
    plan->staging = floats;
    if (l.out[0].format != RowFormat::f32) floats += int64_t{batch.n_tokens} * p.n_heads * p.dim_v;
    grow<float>(*l.common, static_cast<size_t>(floats));
    auto* counters = reinterpret_cast<std::atomic<int>*>(plan->items() + n_items);
    for (size_t i = 0; i < n_counters; ++i) new (counters + i) std::atomic<int>(0);
    return plan->n_chunks;
}

// Returns true for the last of `total` chunks that call it with this counter.
bool last_of(std::atomic<int>& counter, int total) {
    return counter.fetch_add(1, std::memory_order_acq_rel) + 1 == total;
}

// Returns the rows of an item for a unit: a KV head, or a piece of its query heads.
Rows rows_of(const Params& p, const Launch& l, const Batch& batch, const Item& item, int unit) {
    const KVLayer& kv = *l.in[in::cache].kv;
    const int first_query = unit / kv.n_heads * p.piece_queries;
    const int queries = std::min(p.queries - first_query, p.piece_queries);
    Rows rows{p,          kv,          batch,   item.sequence,          unit % kv.n_heads,
              item.first, first_query, queries, item.n_tokens * queries};
    if (is_sparse(p, batch, item.first)) rows.selected = l.in[in::keys].row(item.first);
    return rows;
}

// Computes attention of the query heads of `unit` over the keys of `part`, a run of an item's splits. The
// call that finishes the last part merges the partial results. Returns true if the output of the unit is
// stored.
bool attend_unit(const Launch& l, const Batch& batch, Plan* plan, const Item& item, int unit, int part,
                 std::atomic<int>* counters, Scratch& scratch) {
    const Params& p = l.as<Params>();
    const KVLayer& kv = *l.in[in::cache].kv;
    Rows rows = rows_of(p, l, batch, item, unit);

    // Scratch, in floats. The size of every part is a multiple of 16.
    const auto n = static_cast<size_t>(rows.n);
    const auto dim = static_cast<size_t>(p.dim), dim_v = static_cast<size_t>(p.dim_v);
    const bool panel = rows.n >= kPanelRows || kv.v_from_k || rows.selected;
    const size_t padded = (n + 15) / 16 * 16, per_row = n * (dim_v + kStateFloats);
    float* at = scratch.get(n * (dim + kKeyBlock) + padded + 2 * per_row +
                            (panel ? kKeyBlock * (dim + dim_v) : 0) + (rows.selected ? kKvTile * dim : 0) +
                            (rows.integers() ? kKeyBlock * dim_v / kKvGroup : 0));
    auto take = [&](size_t count) { return std::exchange(at, at + count); };
    rows.q = take(n * dim);
    if (rows.integers()) {  // 1.25 bytes for each dimension, in the memory of the floats
        rows.bytes.scales = rows.q;
        rows.bytes.offsets = reinterpret_cast<int32_t*>(rows.q + n * (dim / kKvGroup));
        rows.bytes.quants = reinterpret_cast<int8_t*>(rows.q + 2 * n * (dim / kKvGroup));
    }
    rows.s = take(n * kKeyBlock);
    rows.factor = take(padded);
    auto* total = reinterpret_cast<RowState*>(take(n * kStateFloats));
    auto* state = reinterpret_cast<RowState*>(take(n * kStateFloats));
    float *total_acc = take(n * dim_v), *acc = take(n * dim_v);
    if (panel) {
        rows.key_panel = take(kKeyBlock * dim);
        rows.value_panel = take(kKeyBlock * dim_v);
    }
    if (rows.selected) rows.tile_panel = take(kKvTile * dim);
    if (rows.integers()) rows.value_scales = take(kKeyBlock * dim_v / kKvGroup);
    load_queries(rows, l.in[in::q]);
    if (l.in[in::slopes]) rows.slopes = l.in[in::slopes].tensor->vector();

    const int first = part * item.step, last = std::min(item.n_splits, first + item.step);
    const int end = (item.first_split + last) * kSplit;
    // Address of the partial result of split i of this item and head, if the item has several parts.
    auto partial = [&](int i) {
        return reinterpret_cast<float*>(l.common->data) + item.partials +
               (int64_t{unit} * item.n_splits + i) * p.item_rows * (p.dim_v + kStateFloats);
    };
    if (item.parts > 1) {
        for (int i = first; i < last; ++i) {
            float* to = partial(i);
            attend_split(rows, item.first_split + i, end, reinterpret_cast<RowState*>(to),
                         to + n * kStateFloats);
        }
        if (!last_of(counters[unit], item.parts)) return false;
        total = reinterpret_cast<RowState*>(partial(0));
        total_acc = partial(0) + n * kStateFloats;
        for (int i = 1; i < item.n_splits; ++i) {
            const auto* from = reinterpret_cast<const RowState*>(partial(i));
            const float* from_acc = partial(i) + n * kStateFloats;
            for (size_t r = 0; r < n; ++r)
                fold(total[r], total_acc + r * dim_v, from[r], from_acc + r * dim_v, p.dim_v);
        }
    } else {
        attend_split(rows, item.first_split, end, total, total_acc);
        for (int i = 1; i < item.n_splits; ++i) {
            attend_split(rows, item.first_split + i, end, state, acc);
            for (size_t r = 0; r < n; ++r)
                fold(total[r], total_acc + r * dim_v, state[r], acc + r * dim_v, p.dim_v);
        }
    }

    const Operand& out = l.out[0];
    const int64_t cols = int64_t{p.n_heads} * p.dim_v;
    const float* sinks = l.in[in::sinks] ? l.in[in::sinks].tensor->vector() : nullptr;
    float* staging = reinterpret_cast<float*>(l.common->data) + plan->staging;
    for (int r = 0; r < rows.n; ++r) {
        const int token = item.first + r / rows.queries;
        const int head = rows.query_head(r);
        const float sink = sinks ? sinks[head] * kLog2e : 0.0f;
        float* o = out.format == RowFormat::f32 ? out.row(token) : staging + token * cols;
        finish(total[r], total_acc + static_cast<size_t>(r) * dim_v, sinks ? &sink : nullptr, p.dim_v,
               o + int64_t{head} * p.dim_v);
    }
    return true;
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params& p = l.as<Params>();
    Plan* plan = reinterpret_cast<Plan*>(l.shared.data);
    const Item& item = std::upper_bound(plan->items(), plan->items() + plan->n_items, chunk,
                                        [](int c, const Item& i) { return c < i.chunk; })[-1];
    const int units = l.in[in::cache].kv->n_heads * p.pieces;
    auto* counters = reinterpret_cast<std::atomic<int>*>(plan->items() + plan->n_items) +
                     (&item - plan->items()) * (units + 1);
    const int part = (chunk - item.chunk) % item.parts;
    const int first_unit = (chunk - item.chunk) / item.parts * item.heads;
    const int end = std::min(units, first_unit + item.heads);
    bool complete = true;
    for (int unit = first_unit; unit < end; ++unit)
        complete = attend_unit(l, batch, plan, item, unit, part, counters, scratch);

    const Operand& out = l.out[0];
    const int n_chunks = (units + item.heads - 1) / item.heads;
    if (out.format == RowFormat::f32 || !complete || !last_of(counters[units], n_chunks)) return;
    const int64_t cols = int64_t{p.n_heads} * p.dim_v;
    const float* staging = reinterpret_cast<const float*>(l.common->data) + plan->staging;
    for (int t = item.first; t < item.first + item.n_tokens; ++t)
        quantize_row(staging + t * cols, static_cast<int>(cols), out.format, out.row<std::byte>(t));
}

}  // namespace

const Kernel attention_kernel{"attention", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
