// attention: causal grouped-query attention over the cache, one code for prefill, decode and verification.
//
// Keys are visited in blocks of 64 and splits of 256 that lie at fixed absolute positions: inside a split the
// softmax is kept online (Dao et al. 2022), splits are folded into each other in ascending order. So what a
// token gets depends on its own position and cache alone, whoever is in the batch, however a prompt was cut
// and however many threads run.
//
// Work falls into items (a run of tokens of one sequence) x KV heads x runs of splits. The query heads of a
// KV head (and in prefill several tokens) share its loads. With few tokens the splits of an item go to
// different threads, leave their state in `common`, and the chunk that finishes last folds them.
#include <atomic>
#include <new>

#include "attention_math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

constexpr int kSplit = 256;     // keys
constexpr int kItemRows = 96;   // rows (tokens x query heads) that share the loads of a KV head
constexpr int kPanelRows = 16;  // from here on keys and values are widened to floats once for all rows
constexpr int kStateFloats = sizeof(RowState) / sizeof(float);
constexpr int64_t kMaxPartialFloats = 16 << 20;
static_assert(kSplit % kKeyBlock == 0 && kKeyBlock % kKvTile == 0);

// in: q f32, kv, sinks? (vector of heads); out: o f32 or q8.
struct Params {
    int n_heads, queries, dim, dim_v, window;  // queries: heads that share a KV head
    int item_tokens, item_rows;                // of an item
    int pieces, piece_queries;                 // parts of a token's heads: one unless queries > kItemRows
    float query_scale, cap;                    // logits in units of log 2: scale and cap carry 1/ln 2
};
constexpr float kLog2e = 1.44269504f;

struct Item {
    int sequence, first, n_tokens;  // rows of the batch
    int first_split, n_splits, step, parts;
    int chunk;         // its first chunk
    int64_t partials;  // its first float in `common`, when parts > 1
};

// Launch::shared: a Plan, its items, then for each item a counter of parts a head and a counter of heads.
struct Plan {
    int n_items, n_chunks;
    int64_t staging;  // first float of the f32 rows that wait for quantisation, in `common`
    Item* items() { return reinterpret_cast<Item*>(this + 1); }
    const Item* items() const { return reinterpret_cast<const Item*>(this + 1); }
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, 3, 1);
    require(l, l.dim == Dim::tokens, "has one row a token");
    const KVLayer* kv = l.in[1].kv;
    require(l, kv, "kv must be a KV layer");
    Params& p = l.as<Params>();
    p.n_heads = whole(l, attrs, "n_heads", 1, 1 << 16);
    require(l, p.n_heads % kv->n_heads == 0, "the heads of the cache must divide n_heads");
    p.queries = p.n_heads / kv->n_heads;
    p.dim = kv->head_dim;
    p.dim_v = kv->head_dim_v;
    p.window = static_cast<int>(attrs.get("window", 0));
    p.item_tokens = std::max(1, kItemRows / p.queries);
    p.item_rows = std::min(p.queries * p.item_tokens, kItemRows);
    p.pieces = (p.queries + kItemRows - 1) / kItemRows;
    p.piece_queries = (p.queries + p.pieces - 1) / p.pieces;
    const auto scale = static_cast<float>(attrs.get("scale"));
    const auto cap = static_cast<float>(attrs.get("softcap", 0));
    require(l, p.window >= 0 && cap >= 0, "window and softcap must not be negative");
    p.query_scale = cap > 0 ? scale / cap : scale * kLog2e;
    p.cap = cap * kLog2e;
    require_rows(l, l.in[0], "q", Act::f32, int64_t{p.n_heads} * p.dim);
    if (l.in[2]) require_vector(l, l.in[2], "sinks", p.n_heads);
    require_output(l, l.out[0], "o", p.n_heads * p.dim_v);
}

// ---- how a batch falls into items and chunks

template <class T>
T* grow(Bytes& bytes, size_t count) {
    if (bytes.size < count * sizeof(T)) bytes = Bytes(count * sizeof(T) * 5 / 4);
    return reinterpret_cast<T*>(bytes.data);
}

int first_key(const Params& p, int position) { return p.window ? std::max(0, position - p.window + 1) : 0; }

int chunks(const Launch& l, const Batch& batch, int n_threads) {
    const Params& p = l.as<Params>();
    const int heads = l.in[1].kv->n_heads * p.pieces;
    int n_items = 0;
    for (int s = 0; s < batch.n_sequences; ++s)
        n_items += (batch.seq_start[s + 1] - batch.seq_start[s] + p.item_tokens - 1) / p.item_tokens;
    const size_t n_counters = static_cast<size_t>(n_items) * (static_cast<size_t>(heads) + 1);
    const size_t bytes =
        sizeof(Plan) + static_cast<size_t>(n_items) * sizeof(Item) + n_counters * sizeof(int);
    Plan* plan = reinterpret_cast<Plan*>(grow<std::byte>(l.shared, bytes));
    plan->n_items = n_items;

    // The longest items first: those of the end of a prompt see the most keys.
    Item* item = plan->items();
    int64_t n_splits = 0;
    for (int s = 0; s < batch.n_sequences; ++s) {
        for (int last = batch.seq_start[s + 1]; last > batch.seq_start[s];) {
            const int first = std::max(batch.seq_start[s], last - p.item_tokens);
            *item = {s, first, last - first, first_key(p, batch.positions[first]) / kSplit, 0, 0, 1, 0, 0};
            item->n_splits = batch.positions[last - 1] / kSplit + 1 - item->first_split;
            n_splits += item->n_splits;
            last = first;
            ++item;
        }
    }

    // About sixteen chunks a thread balance the load. Items are cut over the keys only when they are few.
    const int64_t state = int64_t{p.item_rows} * (p.dim_v + kStateFloats);
    const bool whole_items = int64_t{n_items} * heads >= 8 * n_threads || n_threads == 1 ||
                             n_splits * heads * state > kMaxPartialFloats;
    const int step = static_cast<int>(std::max<int64_t>(1, n_splits * heads / (16 * n_threads)));
    int64_t floats = 0;
    plan->n_chunks = 0;
    for (item = plan->items(); item != plan->items() + n_items; ++item) {
        item->step = whole_items ? item->n_splits : step;
        item->parts = (item->n_splits + item->step - 1) / item->step;
        item->chunk = plan->n_chunks;
        item->partials = floats;
        if (item->parts > 1) floats += state * heads * item->n_splits;
        plan->n_chunks += heads * item->parts;
    }
    plan->staging = floats;
    if (l.out[0].act != Act::f32) floats += int64_t{batch.n_tokens} * p.n_heads * p.dim_v;
    grow<float>(*l.common, static_cast<size_t>(floats));
    auto* counters = reinterpret_cast<std::atomic<int>*>(plan->items() + n_items);
    for (size_t i = 0; i < n_counters; ++i) new (counters + i) std::atomic<int>(0);
    return plan->n_chunks;
}

// True for the chunk that is the last of `total` to arrive.
bool last_of(std::atomic<int>& counter, int total) {
    return counter.fetch_add(1, std::memory_order_acq_rel) + 1 == total;
}

// ---- one item, one KV head

// The rows of a chunk and its scratch.
struct Rows {
    const Params& p;
    const KVLayer& kv;
    const Batch& batch;
    int sequence, head;                     // KV head
    int first_token, first_query, queries;  // queries: rows a token
    int n;                                  // rows
    float* q = nullptr;                     // [n][dim]
    ByteQuery bytes = {};                   // instead of q when the keys are integers
    float* s = nullptr;                     // [n][kKeyBlock] scores, then probabilities
    float* factor = nullptr;                // [n] what a new maximum does to the sum
    float* key_panel = nullptr;             // [tile][dim][16], if there is a panel
    float* value_panel = nullptr;           // [tile][16][dim_v]
    float* value_scales = nullptr;          // [tile][16][dim_v / 32] when the values are integers

    bool integers() const { return kv.type != KvType::f16; }
    int position(int row) const { return batch.positions[first_token + row / queries]; }
};

// Queries as the keys want them: scaled floats, or int8 with the scale in the group's scale.
void load_queries(const Rows& rows, const Operand& q) {
    const Params& p = rows.p;
    const int groups = p.dim / kKvGroup;
    const int offset = rows.kv.type == KvType::q4_0 ? NibbleKeyTile::kOffset : ByteKeyTile::kOffset;
    for (int r = 0; r < rows.n; ++r) {
        const int query = rows.head * p.queries + rows.first_query + r % rows.queries;
        const float* x = q.row(rows.first_token + r / rows.queries) + query * p.dim;
        if (!rows.integers()) {
            const F32x16 scale = F32x16::set1(p.query_scale);
            for (int d = 0; d < p.dim; d += 16) (F32x16::load(x + d) * scale).store(rows.q + r * p.dim + d);
            continue;
        }
        for (int g = 0; g < groups; ++g) {
            const F32x16 a = F32x16::load(x + g * kKvGroup), b = F32x16::load(x + g * kKvGroup + 16);
            const float top = hmax(max(abs(a), abs(b)));
            const F32x16 inverse = F32x16::set1(top > 1e-30f ? 127.0f / top : 0.0f);
            int8_t* quants = rows.bytes.quants + r * p.dim + g * kKvGroup;
            const I32x16 qa = to_i32(a * inverse), qb = to_i32(b * inverse);
            qa.store_i8(quants);
            qb.store_i8(quants + 16);
            const bool finite = sum((a + b) * F32x16::zero()) == 0.0f;
            rows.bytes.scales[r * groups + g] =
                finite ? top / 127.0f * p.query_scale : std::numeric_limits<float>::quiet_NaN();
            rows.bytes.offsets[r * groups + g] = (kDotOffset - offset) * sum(qa + qb);
        }
    }
}

// `count` elements of a tile as floats. Tiles are a multiple of 64, the scales of one of 16.
template <class Tile>
void widen(const Tile& tile, int count, float* to) {
    for (int at = 0; at < count; at += 64) {
        const typename Tile::Cursor from = tile.at(at);
        ZINC_UNROLL
        for (int i = 0; i < 4; ++i) {
            from.prefetch_for(i);
            if (at + 16 * i < count) from.load(i).store(to + at + 16 * i);
        }
    }
}

// The scales of a tile are read before or between its quants, and so asked for a whole block ahead.
void prefetch_scales(const std::byte* scales, int count) {
    for (int i = 0; i < count / kKvGroup * 2; i += kLine) prefetch(scales + i);
}

// The tiles of one block of keys; null outside [first, last), which are counted from its base.
struct Tiles {
    const std::byte *keys[kBlockTiles] = {}, *values[kBlockTiles] = {};

    Tiles(const Rows& rows, int base, int first, int last) {
        for (int j = std::max(0, first) / kKvTile; j < kBlockTiles && j * kKvTile < last; ++j) {
            const int position = base + j * kKvTile;
            const int block = kv_block(rows.batch, rows.kv, rows.sequence, position);
            keys[j] = kv_k_tile(rows.kv, block, rows.head, position);
            values[j] = rows.kv.v_from_k ? keys[j] : kv_v_tile(rows.kv, block, rows.head, position);
        }
    }
};

// Sixteen dimensions of a tile of integer keys as floats, [dimension][16 positions].
template <class Keys>
void widen_byte_keys(const Keys& keys, int dim, int d, float* to) {
    const F32x16 offset = F32x16::set1(Keys::kOffset), scale = key_scales(keys, dim, d / kKvGroup);
    for (int i = 0; i < 16; i += 4) {
        const I16x32 bytes = keys.words(d / kKvGroup, (d % kKvGroup + i) / 4), even = bytes & 255,
                     odd = shr<8>(bytes) & 255;
        const I32x16 four[4] = {even.even(), odd.even(), even.odd(), odd.odd()};
        for (int j = 0; j < 4; ++j) ((to_f32(four[j]) - offset) * scale).store(to + (i + j) * kKvTile);
    }
}

// The values of a tile that has them in its keys. `keys`: the tile as floats, if it is f16.
void turn_keys(const Rows& rows, const std::byte* tile, const float* keys, float* values) {
    const Params& p = rows.p;
    const int first = p.dim - p.dim_v;
    for (int d = 0; d < p.dim_v; d += 16) {
        float block[16 * kKvTile];
        if (rows.kv.type == KvType::q8_0) widen_byte_keys(ByteKeyTile{tile}, p.dim, first + d, block);
        if (rows.kv.type == KvType::q4_0) widen_byte_keys(NibbleKeyTile{tile}, p.dim, first + d, block);
        transpose16(rows.integers() ? block : keys + (first + d) * kKvTile, kKvTile, values + d, p.dim_v);
    }
}

// One block of keys for rows [row, row + n) whose keys lie in [first, last) of the block.
template <class Keys, class Values>
void attend_rows(const Rows& rows, const Keys* keys, const Values* values, int row, int n, int base,
                 int first, int last, RowState* states, float* acc) {
    const Params& p = rows.p;
    const int first_tile = first / kKvTile, last_tile = (last + kKvTile - 1) / kKvTile;
    float* s = rows.s + row * kKeyBlock;
    with_rows<kMaxRows>(n, [&](auto count) {
        auto dot = [&](auto n_tiles, int tile) {
            if constexpr (requires { Keys::kOffset; }) {
                const int groups = p.dim / kKvGroup;
                const ByteQuery q = {rows.bytes.quants + row * p.dim, rows.bytes.scales + row * groups,
                                     rows.bytes.offsets + row * groups};
                dot_byte_keys<count(), n_tiles()>(q, p.dim, keys + tile, s + tile * kKvTile);
            } else {
                dot_keys<count(), n_tiles()>(rows.q + row * p.dim, p.dim, keys + tile, s + tile * kKvTile);
            }
        };
        int tile = first_tile;
        constexpr int tiles = vectors_for(count(), kBlockTiles);
        for (; tile + tiles <= last_tile; tile += tiles) dot(std::integral_constant<int, tiles>{}, tile);
        if constexpr (tiles > 1) {
            for (; tile < last_tile; ++tile) dot(std::integral_constant<int, 1>{}, tile);
        }
        for (int r = row; r < row + n; ++r) {
            const int position = rows.position(r);
            rows.factor[r] =
                softmax_block(rows.s + r * kKeyBlock, first_tile, last_tile, first_key(p, position) - base,
                              position + 1 - base, p.cap, states[r]);
        }
        add_all_values<count()>(s, rows.factor + row, values, first, last, p.dim_v, acc + row * p.dim_v);
    });
}

// All rows over the keys of one split: their states and sums of values start afresh. Keys from `end` on are
// another chunk's.
void attend_split(const Rows& rows, int split, int end, RowState* states, float* acc) {
    const Params& p = rows.p;
    for (int r = 0; r < rows.n; ++r) states[r].clear();
    std::fill_n(acc, static_cast<size_t>(rows.n) * static_cast<size_t>(p.dim_v), 0.0f);
    const int groups = (rows.n + kMaxRows - 1) / kMaxRows, group_rows = (rows.n + groups - 1) / groups;
    const int from = std::max(split * kSplit, first_key(p, rows.position(0)));
    const int to = std::min(end, rows.position(rows.n - 1) + 1);
    int base = from / kKeyBlock * kKeyBlock;
    Tiles next(rows, base, from - base, to - base);
    for (; base < std::min(to, (split + 1) * kSplit); base += kKeyBlock) {
        const int first = std::max(0, from - base), last = std::min(kKeyBlock, to - base);
        const Tiles now = next;
        next = Tiles(rows, base + kKeyBlock, 0, to - base - kKeyBlock);
        HalfTile half_keys[kBlockTiles], half_values[kBlockTiles];
        ByteKeyTile byte_keys[kBlockTiles];
        ByteTile byte_values[kBlockTiles];
        NibbleKeyTile nibble_keys[kBlockTiles];
        NibbleTile nibble_values[kBlockTiles];
        FloatTile float_keys[kBlockTiles], float_values[kBlockTiles];
        const int key_count = kKvTile * p.dim, value_count = kKvTile * p.dim_v;
        for (int j = first / kKvTile; j * kKvTile < last; ++j) {
            const std::byte* ahead = next.keys[j] ? next.keys[j] : now.values[j];
            const std::byte* ahead_values = next.values[j] ? next.values[j] : now.values[j];
            half_keys[j] = {now.keys[j], now.values[j]};
            half_values[j] = {now.values[j], ahead};
            byte_keys[j] = {now.keys[j]};
            nibble_keys[j] = {now.keys[j]};
            if (rows.integers() && !rows.kv.v_from_k) {
                const int64_t key_bytes = kv_quant_bytes(p.dim, rows.kv.type);
                const int64_t value_bytes = kv_quant_bytes(p.dim_v, rows.kv.type);
                float* scales = rows.value_scales + j * (value_count / kKvGroup);
                widen(HalfTile{now.values[j] + value_bytes, ahead}, value_count / kKvGroup, scales);
                if (next.values[j]) prefetch_scales(next.values[j] + value_bytes, value_count);
                prefetch_scales(ahead + key_bytes, key_count);
                byte_values[j] = {now.values[j], ahead, ahead_values, scales};
                nibble_values[j] = {now.values[j], ahead, ahead_values, scales};
            }
            if (!rows.value_panel) continue;
            float_keys[j] = {rows.key_panel + j * key_count};
            float_values[j] = {rows.value_panel + j * value_count};
            if (rows.kv.v_from_k) {
                if (!rows.integers()) widen(half_keys[j], key_count, rows.key_panel + j * key_count);
                turn_keys(rows, now.keys[j], rows.key_panel + j * key_count,
                          rows.value_panel + j * value_count);
            } else if (rows.kv.type == KvType::q8_0) {
                widen(byte_values[j], value_count, rows.value_panel + j * value_count);
            } else if (rows.kv.type == KvType::q4_0) {
                widen(nibble_values[j], value_count, rows.value_panel + j * value_count);
            } else {
                widen(half_keys[j], key_count, rows.key_panel + j * key_count);
                widen(half_values[j], value_count, rows.value_panel + j * value_count);
            }
        }
        for (int row = 0; row < rows.n; row += group_rows) {
            const int n = std::min(group_rows, rows.n - row);
            const int a = std::max(first, first_key(p, rows.position(row)) - base);
            const int b = std::min(last, rows.position(row + n - 1) + 1 - base);
            if (a >= b) continue;
            const auto attend = [&](const auto* keys, const auto* values) {
                attend_rows(rows, keys, values, row, n, base, a, b, states, acc);
            };
            const bool panel = rows.value_panel;
            switch (rows.kv.type) {
                case KvType::q8_0:
                    panel ? attend(byte_keys, float_values) : attend(byte_keys, byte_values);
                    break;
                case KvType::q4_0:
                    panel ? attend(nibble_keys, float_values) : attend(nibble_keys, nibble_values);
                    break;
                case KvType::f16: panel ? attend(float_keys, float_values) : attend(half_keys, half_values);
            }
        }
    }
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params& p = l.as<Params>();
    const KVLayer& kv = *l.in[1].kv;
    Plan* plan = reinterpret_cast<Plan*>(l.shared.data);
    const Item& item = std::upper_bound(plan->items(), plan->items() + plan->n_items, chunk,
                                        [](int c, const Item& i) { return c < i.chunk; })[-1];
    const int part = (chunk - item.chunk) % item.parts, unit = (chunk - item.chunk) / item.parts;
    const int piece = unit / kv.n_heads, heads = kv.n_heads * p.pieces;
    auto* counters = reinterpret_cast<std::atomic<int>*>(plan->items() + plan->n_items) +
                     (&item - plan->items()) * (heads + 1);

    const int first_query = piece * p.piece_queries;
    const int queries = std::min(p.queries - first_query, p.piece_queries);
    Rows rows{p,          kv,          batch,   item.sequence,          unit % kv.n_heads,
              item.first, first_query, queries, item.n_tokens * queries};

    // Scratch, in floats; every part a multiple of 16.
    const auto n = static_cast<size_t>(rows.n);
    const auto dim = static_cast<size_t>(p.dim), dim_v = static_cast<size_t>(p.dim_v);
    const bool panel = rows.n >= kPanelRows || kv.v_from_k;
    const size_t padded = (n + 15) / 16 * 16, per_row = n * (dim_v + kStateFloats);
    float* at =
        scratch.get(n * (dim + kKeyBlock) + padded + 2 * per_row + (panel ? kKeyBlock * (dim + dim_v) : 0) +
                    (rows.integers() ? kKeyBlock * dim_v / kKvGroup : 0));
    auto take = [&](size_t count) { return std::exchange(at, at + count); };
    rows.q = take(n * dim);
    if (rows.integers()) {  // a byte and a quarter a dimension, in the room of the floats
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
    if (rows.integers()) rows.value_scales = take(kKeyBlock * dim_v / kKvGroup);
    load_queries(rows, l.in[0]);

    const int first = part * item.step, last = std::min(item.n_splits, first + item.step);
    const int end = (item.first_split + last) * kSplit;
    // Where split i of this item and head keeps its state when the item has several parts.
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
        if (!last_of(counters[unit], item.parts)) return;
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
    const float* sinks = l.in[2] ? l.in[2].tensor->vector() : nullptr;
    float* staging = reinterpret_cast<float*>(l.common->data) + plan->staging;
    for (int r = 0; r < rows.n; ++r) {
        const int token = item.first + r / rows.queries;
        const int head = rows.head * p.queries + rows.first_query + r % rows.queries;
        const float sink = sinks ? sinks[head] * kLog2e : 0.0f;
        float* o = out.act == Act::f32 ? out.row(token) : staging + token * cols;
        finish(total[r], total_acc + static_cast<size_t>(r) * dim_v, sinks ? &sink : nullptr, p.dim_v,
               o + int64_t{head} * p.dim_v);
    }
    if (out.act == Act::f32 || !last_of(counters[heads], heads)) return;
    for (int t = item.first; t < item.first + item.n_tokens; ++t)
        quantize_row(staging + t * cols, static_cast<int>(cols), out.act, out.row<std::byte>(t));
}

}  // namespace

const Kernel attention_kernel{"attention", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
