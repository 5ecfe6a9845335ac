// Where keys and values lie in a KVLayer.
//
//   K  [block][head][tile of 16 positions]      lanes = positions
//        f16  [head_dim][16]
//        q8   [head_dim/4][16][4] u8 = s8 + 128, then [head_dim/32][16] f16 scales
//   V  [block][head][tile of 16 positions]      lanes = dimensions
//        f16  [16][head_dim_v]
//        q8   [16][head_dim_v] s8, then [16][head_dim_v/32] f16 scales
//
// With v_from_k (latent attention) there is no V: a position's values are the last head_dim_v dimensions of
// its key.
//
// K has its positions in the lanes so that one query against 16 keys is head_dim broadcasts and fused
// multiply-adds: no transposition, no horizontal sum, and one order of summation for any number of queries.
//
// Functions are static: every SIMD level and the baseline objects have their own copy, so the linker can
// never hand an AVX-512 body to code that runs on a machine without it.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "../half.h"
#include "../kernel.h"

namespace zinc {

inline constexpr int kKvTile = 16;   // positions
inline constexpr int kKvGroup = 32;  // dimensions that share a scale
inline constexpr int kMaxHeadDim = 576;

static inline int64_t kv_tile_bytes(int dim, bool q8) {
    return q8 ? int64_t{kKvTile} * dim + int64_t{kKvTile} * (dim / kKvGroup) * 2 : int64_t{kKvTile} * dim * 2;
}
static inline int64_t kv_bytes(const KVLayer& c, int dim) {
    return int64_t{c.n_blocks} * c.n_heads * (c.block_tokens / kKvTile) * kv_tile_bytes(dim, c.q8);
}
static inline int64_t kv_k_bytes(const KVLayer& c) { return kv_bytes(c, c.head_dim); }
static inline int64_t kv_v_bytes(const KVLayer& c) { return c.v_from_k ? 0 : kv_bytes(c, c.head_dim_v); }

// The tile that holds `position`, whose block is `block`.
static inline std::byte* kv_tile(const Bytes& bytes, const KVLayer& c, int dim, int block, int head,
                                 int position) {
    const int64_t tiles = c.block_tokens / kKvTile;
    const int64_t tile = (int64_t{block} * c.n_heads + head) * tiles + position % c.block_tokens / kKvTile;
    return bytes.data + tile * kv_tile_bytes(dim, c.q8);
}
static inline std::byte* kv_k_tile(const KVLayer& c, int block, int head, int position) {
    return kv_tile(c.k, c, c.head_dim, block, head, position);
}
static inline std::byte* kv_v_tile(const KVLayer& c, int block, int head, int position) {
    return kv_tile(c.v, c, c.head_dim_v, block, head, position);
}

// The block that holds `position` of a sequence; throws where the table has none (freed, or never allocated).
static inline int kv_block(const Batch& batch, const KVLayer& c, int sequence, int position) {
    const auto group = static_cast<size_t>(c.group);
    const Batch::Table table = group < batch.tables.size() ? batch.tables[group] : Batch::Table{};
    const int64_t i = position / c.block_tokens;
    const int block = position >= 0 && i < table.stride ? table.blocks[sequence * table.stride + i] : -1;
    if (block < 0 || block >= c.n_blocks)
        throw std::out_of_range("no KV block holds position " + std::to_string(position) + " of sequence " +
                                std::to_string(sequence) + " in group " + std::to_string(c.group));
    return block;
}

// Throws std::invalid_argument when the kernels cannot hold such a cache.
static inline void kv_check(int n_blocks, int block_tokens, int n_heads, int head_dim, int head_dim_v,
                            bool q8, bool v_from_k = false) {
    auto require = [](bool ok, const std::string& text) {
        if (!ok) throw std::invalid_argument("KV cache: " + text);
    };
    require(n_blocks > 0 && n_heads > 0, "the numbers of blocks and heads must be positive");
    require(block_tokens > 0 && block_tokens % kKvTile == 0,
            "tokens a block must be a positive multiple of 16, not " + std::to_string(block_tokens));
    require(!v_from_k || head_dim_v <= head_dim,
            "values that are part of the keys cannot be longer than they are");
    for (int dim : {head_dim, head_dim_v}) {
        require(dim > 0 && dim % 16 == 0 && dim <= kMaxHeadDim,
                "a head dimension must be a multiple of 16 up to 576, not " + std::to_string(dim));
        require(!q8 || dim % kKvGroup == 0, "q8_0 needs head dimensions that are multiples of 32, not " +
                                                std::to_string(dim) + "; use f16");
    }
}

static inline void kv_copy_block(KVLayer& c, int src, int dst) {
    if (src < 0 || src >= c.n_blocks || dst < 0 || dst >= c.n_blocks)
        throw std::invalid_argument("KV cache: copy_block outside the cache");
    const int64_t k = kv_k_bytes(c) / c.n_blocks, v = kv_v_bytes(c) / c.n_blocks;
    std::memmove(c.k.data + dst * k, c.k.data + src * k, static_cast<size_t>(k));
    if (v) std::memmove(c.v.data + dst * v, c.v.data + src * v, static_cast<size_t>(v));
}

// Floats back out of the cache, for tests and for `zinc verify`: positions [0, n_tokens) of a sequence whose
// block table is `blocks`, into k [n_tokens][heads][head_dim] and v [n_tokens][heads][head_dim_v].
static inline void kv_read(const KVLayer& c, const int32_t* blocks, int n_tokens, float* k, float* v) {
    auto half = [](const std::byte* p, int64_t i) {
        uint16_t h;
        std::memcpy(&h, p + 2 * i, 2);
        return f16_to_f32(h);
    };
    for (int t = 0; t < n_tokens; ++t) {
        const int block = blocks[t / c.block_tokens], lane = t % kKvTile;
        if (block < 0 || block >= c.n_blocks) throw std::invalid_argument("KV cache: no such block");
        for (int h = 0; h < c.n_heads; ++h) {
            const std::byte* kt = kv_k_tile(c, block, h, t);
            for (int d = 0; d < c.head_dim; ++d, ++k) {
                if (!c.q8) {
                    *k = half(kt, d * kKvTile + lane);
                    continue;
                }
                const int quant = static_cast<int>(kt[(d / 4 * kKvTile + lane) * 4 + d % 4]) - 128;
                *k = half(kt + kKvTile * c.head_dim, d / kKvGroup * kKvTile + lane) *
                     static_cast<float>(quant);
            }
            const std::byte* vt = c.v_from_k ? nullptr : kv_v_tile(c, block, h, t);
            for (int d = 0; d < c.head_dim_v; ++d, ++v) {
                if (c.v_from_k) {
                    *v = k[d - c.head_dim_v];
                    continue;
                }
                if (!c.q8) {
                    *v = half(vt, int64_t{lane} * c.head_dim_v + d);
                    continue;
                }
                const int quant = static_cast<int8_t>(vt[lane * c.head_dim_v + d]);
                *v = half(vt + kKvTile * c.head_dim_v, lane * (c.head_dim_v / kKvGroup) + d / kKvGroup) *
                     static_cast<float>(quant);
            }
        }
    }
}

}  // namespace zinc
