// Attention of the query rows of one chunk over the keys of one split.
//
// A row is one query head of one token. All rows of a chunk share a KV head, so keys and values are loaded
// once for several rows. `attend_split` walks the blocks of a split; for each block it describes the tiles of
// the cache (f16, int8 or int4), widens them to a panel of floats if there are many rows, and runs the inner
// loops of attention_math.h over groups of rows.
#pragma once

#include "attention_math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL::attention_rows {

inline constexpr int kSplit = 256;  // keys
inline constexpr float kLog2e = 1.44269504f;
static_assert(kSplit % kKeyBlock == 0 && kKeyBlock % kKvTile == 0);

struct Params {
    int n_heads, queries, dim, dim_v, window;  // queries: query heads of one KV head
    int item_tokens, item_rows;                // sizes of an item
    int pieces, piece_queries;                 // parts of a token's heads: one unless queries > kItemRows
    int top_k;                                 // positions that a query sees, 0 for all
    bool causal;                               // else a query sees all positions of its sequence
    bool chunked;                              // windows follow each other
    float query_scale, cap;                    // both include log2(e): logits are exponents of 2
};

// The first position that the query at `position` sees.
inline int first_key(const Params& p, int position) {
    if (p.chunked) return position / p.window * p.window;
    return p.window ? std::max(0, position - p.window + 1) : 0;
}

// The last position that token `token` of a sequence sees.
inline int last_key(const Params& p, const Batch& batch, int sequence, int token) {
    const int position = batch.positions[token];
    if (p.causal) return position;
    const int end = batch.positions[batch.seq_start[sequence + 1] - 1];
    return p.window ? std::min(end, position + p.window - 1) : end;
}

// Whether a token sees a selection of the positions before it, not all of them.
inline bool is_sparse(const Params& p, const Batch& batch, int token) {
    return p.top_k > 0 && batch.positions[token] >= p.top_k;
}

// The rows of a chunk, and its scratch.
struct Rows {
    const Params& p;
    const KVLayer& kv;
    const Batch& batch;
    int sequence, head;                     // KV head
    int first_token, first_query, queries;  // queries: rows of each token
    int n;                                  // number of rows
    const float* slopes = nullptr;          // of ALiBi, for each query head
    const float* selected = nullptr;        // [top_k] positions of the only token, if they are a selection
    float* q = nullptr;                     // [n][dim]
    ByteQuery bytes = {};                   // used instead of q if the keys are integers
    float* s = nullptr;                     // [n][kKeyBlock] scores, then probabilities
    float* factor = nullptr;                // [n] factor of the old sum after a new maximum
    float* key_panel = nullptr;             // [tile][dim][16], null without a panel
    float* value_panel = nullptr;           // [tile][16][dim_v]
    float* value_scales = nullptr;          // [tile][16][dim_v / 32], if the values are integers
    float* tile_panel = nullptr;            // [dim][16], if the positions are a selection

    // Whether scores are computed with integers. Selected keys are converted to floats.
    bool integers() const { return kv.type != KvType::f16 && !selected; }
    int query_head(int row) const { return head * p.queries + first_query + row % queries; }
    int position(int row) const { return batch.positions[first_token + row / queries]; }
    int last(int row) const {
        return selected ? p.top_k - 1 : last_key(p, batch, sequence, first_token + row / queries);
    }
};

// Loads the queries in the format that the keys need: scaled floats, or int8 with `query_scale` in the scale
// of each group.
inline void load_queries(const Rows& rows, const Operand& q) {
    const Params& p = rows.p;
    const int groups = p.dim / kKvGroup;
    const int offset = rows.kv.type == KvType::q4_0 ? NibbleKeyTile::kOffset : ByteKeyTile::kOffset;
    for (int r = 0; r < rows.n; ++r) {
        const float* x = q.row(rows.first_token + r / rows.queries) + rows.query_head(r) * p.dim;
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

// Converts `count` elements of a tile to floats. Tiles have a multiple of 64 elements and a multiple of 16
// scales.
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

// Prefetches the scales of a tile. They are read before or between its quants, so this is done a block ahead.
inline void prefetch_scales(const std::byte* scales, int count) {
    for (int i = 0; i < count / kKvGroup * 2; i += kLine) prefetch(scales + i);
}

// The cache tiles of one block of keys. Tiles outside [first, last), counted from the base of the block, are
// null.
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

// Converts dimensions [d, d + 16) of a tile of integer keys to floats [dimension][16 positions].
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

// Converts a tile of keys to floats [dimension][16 positions].
inline void widen_keys(const KVLayer& kv, const std::byte* tile, float* to) {
    if (kv.type == KvType::f16) return widen(HalfTile{tile, tile}, kKvTile * kv.head_dim, to);
    for (int d = 0; d < kv.head_dim; d += 16) {
        if (kv.type == KvType::q8_0) widen_byte_keys(ByteKeyTile{tile}, kv.head_dim, d, to + d * kKvTile);
        if (kv.type == KvType::q4_0) widen_byte_keys(NibbleKeyTile{tile}, kv.head_dim, d, to + d * kKvTile);
    }
}

// Extracts the values of a tile that stores them in its keys. `keys` is the tile as floats, if the cache is
// f16.
inline void transpose_keys(const Rows& rows, const std::byte* tile, const float* keys, float* values) {
    const Params& p = rows.p;
    const int first = p.dim - p.dim_v;
    for (int d = 0; d < p.dim_v; d += 16) {
        float block[16 * kKvTile];
        if (rows.kv.type == KvType::q8_0) widen_byte_keys(ByteKeyTile{tile}, p.dim, first + d, block);
        if (rows.kv.type == KvType::q4_0) widen_byte_keys(NibbleKeyTile{tile}, p.dim, first + d, block);
        transpose16(rows.integers() ? block : keys + (first + d) * kKvTile, kKvTile, values + d, p.dim_v);
    }
}

// Subtracts from the scores of a row in tiles [first_tile, last_tile) the slope of its head times the
// distance of each key. `position` is that of the row, counted from the base of the block.
inline void subtract_distances(float* s, int first_tile, int last_tile, int position, float slope) {
    for (int k = first_tile * kKvTile; k < last_tile * kKvTile; ++k)
        s[k] -= slope * static_cast<float>(std::abs(k - position));
}

// Processes one block of keys for rows [row, row + n), which see keys [first, last) of the block.
template <class Keys, class Values>
void attend_rows(const Rows& rows, const Keys* keys, const Values* values, int row, int n, int base,
                 int first, int last, RowState* states, float* acc) {
    const Params& p = rows.p;
    const int first_tile = first / kKvTile, last_tile = (last + kKvTile - 1) / kKvTile;
    float* s = rows.s + row * kKeyBlock;
    with_rows<kOneTileRows>(n, [&](auto count) {
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
            if (rows.slopes)
                subtract_distances(rows.s + r * kKeyBlock, first_tile, last_tile, rows.position(r) - base,
                                   rows.slopes[rows.query_head(r)] * kLog2e);
            rows.factor[r] = softmax_block(rows.s + r * kKeyBlock, first_tile, last_tile,
                                           first_key(p, rows.position(r)) - base, rows.last(r) + 1 - base,
                                           p.cap, states[r]);
        }
        add_all_values<count()>(s, rows.factor + row, values, first, last, p.dim_v, acc + row * p.dim_v);
    });
}

// Copies n selected keys starting at `first`, and their values, to the panels of floats. Positions ascend, so
// each tile is converted once.
inline void gather(const Rows& rows, int first, int n) {
    const Params& p = rows.p;
    const KVLayer& kv = rows.kv;
    const std::byte* converted = nullptr;
    for (int i = 0; i < n; ++i) {
        const int position = static_cast<int>(rows.selected[first + i]), lane = position % kKvTile;
        const int block = kv_block(rows.batch, kv, rows.sequence, position);
        const std::byte* tile = kv_k_tile(kv, block, rows.head, position);
        if (tile != converted) widen_keys(kv, tile, rows.tile_panel);
        converted = tile;
        float* key = rows.key_panel + i / kKvTile * kKvTile * p.dim + i % kKvTile;
        for (int d = 0; d < p.dim; ++d) key[d * kKvTile] = rows.tile_panel[d * kKvTile + lane];
        float* value = rows.value_panel + i * p.dim_v;
        const float* shared = rows.tile_panel + (p.dim - p.dim_v) * kKvTile + lane;
        const std::byte* values = kv.v_from_k ? nullptr : kv_v_tile(kv, block, rows.head, position);
        for (int d = 0; d < p.dim_v; ++d)
            value[d] = values ? kv_value(kv, values, lane, d) : shared[d * kKvTile];
    }
}

// attend_split for a token with selected keys. A split is a range of the selection.
inline void attend_selected(const Rows& rows, int split, int end, int group_rows, RowState* states,
                            float* acc) {
    const Params& p = rows.p;
    const int to = std::min({end, p.top_k, (split + 1) * kSplit});
    FloatTile keys[kBlockTiles], values[kBlockTiles];
    for (int j = 0; j < kBlockTiles; ++j) {
        keys[j] = {rows.key_panel + j * kKvTile * p.dim};
        values[j] = {rows.value_panel + j * kKvTile * p.dim_v};
    }
    for (int base = split * kSplit; base < to; base += kKeyBlock) {
        const int n_keys = std::min(kKeyBlock, to - base);
        gather(rows, base, n_keys);
        for (int row = 0; row < rows.n; row += group_rows)
            attend_rows(rows, keys, values, row, std::min(group_rows, rows.n - row), base, 0, n_keys, states,
                        acc);
    }
}

// Computes the states and the sums of values `acc` of all rows over the keys of one split, from zero. Keys
// at `end` and later ones belong to another chunk.
inline void attend_split(const Rows& rows, int split, int end, RowState* states, float* acc) {
    const Params& p = rows.p;
    for (int r = 0; r < rows.n; ++r) states[r].clear();
    std::fill_n(acc, static_cast<size_t>(rows.n) * static_cast<size_t>(p.dim_v), 0.0f);
    const int from = std::max(split * kSplit, rows.selected ? 0 : first_key(p, rows.position(0)));
    const int to = std::min(end, rows.last(rows.n - 1) + 1);
    const int most = to - from / kKvTile * kKvTile <= kKvTile ? kOneTileRows : kMaxRows;
    const int groups = (rows.n + most - 1) / most, group_rows = (rows.n + groups - 1) / groups;
    if (rows.selected) return attend_selected(rows, split, end, group_rows, states, acc);
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
                transpose_keys(rows, now.keys[j], rows.key_panel + j * key_count,
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
            const int b = std::min(last, rows.last(row + n - 1) + 1 - base);
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

}  // namespace zinc::ZINC_LEVEL::attention_rows
