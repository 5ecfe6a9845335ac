// Layout of keys and values in a KVLayer.
//
// clang-format off
//   K  [block][head][tile of 16 positions]      lanes = positions
//        f16  [head_dim][16]
//        q8   [head_dim/4][16][4] u8 = s8 + 128, then f16 scales [head_dim/32][16]
//        q4   [head_dim/32][4][16][4] bytes of two u4 = s4 + 8, then the scales;
//             byte i of vector v of a group: dimensions 4 v + i (low) and 16 + 4 v + i (high)
//   V  [block][head][tile of 16 positions]      lanes = dimensions
//        f16  [16][head_dim_v]
//        q8   [16][head_dim_v] s8, then f16 scales [16][head_dim_v/32]
//        q4   [16][head_dim_v/16][8] bytes of two u4 = s4 + 8, then the scales;
//             byte i of a run of 16 dimensions: dimensions i (low) and 8 + i (high)
// clang-format on
//
// With v_from_k (latent attention) there is no V: the value of a position is the last head_dim_v dimensions
// of its key.
//
// In K, lanes are positions, so one query against 16 keys is head_dim broadcasts and fused multiply-adds: no
// transposition, no horizontal sum, and one order of summation for any number of queries.
//
// Functions are static, so that every SIMD level has its own copy: the linker must not use an AVX-512 copy in
// code that runs on a machine without AVX-512.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "../half.h"
#include "../kernel.h"

namespace zinc {

inline constexpr int kKvTile = 16;   // positions
inline constexpr int kKvGroup = 32;  // dimensions that share a scale
inline constexpr int kMaxHeadDim = 576;

// Bytes of the values of a tile; its scales follow them.
static inline int64_t kv_quant_bytes(int dim, KvType type) {
    const int64_t n = int64_t{kKvTile} * dim;
    return type == KvType::f16 ? 2 * n : type == KvType::q8_0 ? n : n / 2;
}
static inline int64_t kv_tile_bytes(int dim, KvType type) {
    const int64_t scales = type == KvType::f16 ? 0 : int64_t{kKvTile} * (dim / kKvGroup) * 2;
    return kv_quant_bytes(dim, type) + scales;
}
static inline int64_t kv_bytes(const KVLayer& c, int dim) {
    return int64_t{c.n_blocks} * c.n_heads * (c.block_tokens / kKvTile) * kv_tile_bytes(dim, c.type);
}
static inline int64_t kv_k_bytes(const KVLayer& c) { return kv_bytes(c, c.head_dim); }
static inline int64_t kv_v_bytes(const KVLayer& c) { return c.v_from_k ? 0 : kv_bytes(c, c.head_dim_v); }

// The tile that holds `position`, which is in block `block`.
static inline std::byte* kv_tile(const Bytes& bytes, const KVLayer& c, int dim, int block, int head,
                                 int position) {
    const int64_t tiles = c.block_tokens / kKvTile;
    const int64_t tile = (int64_t{block} * c.n_heads + head) * tiles + position % c.block_tokens / kKvTile;
    return bytes.data + tile * kv_tile_bytes(dim, c.type);
}
static inline std::byte* kv_k_tile(const KVLayer& c, int block, int head, int position) {
    return kv_tile(c.k, c, c.head_dim, block, head, position);
}
static inline std::byte* kv_v_tile(const KVLayer& c, int block, int head, int position) {
    return kv_tile(c.v, c, c.head_dim_v, block, head, position);
}

// The block that holds `position` of a sequence. Throws std::out_of_range if it was freed or never allocated.
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
                            KvType type, bool v_from_k = false) {
    auto require = [](bool ok, const std::string& text) {
        if (!ok) throw std::invalid_argument("KV cache: " + text);
    };
    require(n_blocks > 0 && n_heads > 0, "the numbers of blocks and heads must be positive");
    require(block_tokens > 0 && block_tokens % kKvTile == 0,
            "tokens per block must be a positive multiple of 16, not " + std::to_string(block_tokens));
    require(!v_from_k || head_dim_v <= head_dim,
            "values that are part of the keys cannot be longer than they are");
    for (int dim : {head_dim, head_dim_v}) {
        require(dim > 0 && dim % 16 == 0 && dim <= kMaxHeadDim,
                "a head dimension must be a multiple of 16 up to 576, not " + std::to_string(dim));
        require(type == KvType::f16 || dim % kKvGroup == 0,
                "integers need head dimensions that are multiples of 32, not " + std::to_string(dim) +
                    "; use f16");
        const int64_t head_bytes = int64_t{block_tokens / kKvTile} * kv_tile_bytes(dim, type);
        require(int64_t{n_blocks} * n_heads <= std::numeric_limits<int64_t>::max() / head_bytes,
                "it needs a possible size");
    }
}

static inline void kv_copy_block(KVLayer& c, int src, int dst) {
    if (src < 0 || src >= c.n_blocks || dst < 0 || dst >= c.n_blocks)
        throw std::invalid_argument("KV cache: copy_block outside the cache");
    const int64_t k = kv_k_bytes(c) / c.n_blocks, v = kv_v_bytes(c) / c.n_blocks;
    std::memmove(c.k.data + dst * k, c.k.data + src * k, static_cast<size_t>(k));
    if (v) std::memmove(c.v.data + dst * v, c.v.data + src * v, static_cast<size_t>(v));
}

static inline float kv_half(const std::byte* p, int i) {
    uint16_t h;
    std::memcpy(&h, p + 2 * i, 2);
    return f16_to_f32(h);
}

// Dimension `d` of the key or value at position % 16 == lane of a tile, as a float.
static inline float kv_key(const KVLayer& c, const std::byte* tile, int lane, int d) {
    if (c.type == KvType::f16) return kv_half(tile, d * kKvTile + lane);
    const int group = d / kKvGroup, in = d % kKvGroup;
    const float scale = kv_half(tile + kv_quant_bytes(c.head_dim, c.type), group * kKvTile + lane);
    if (c.type == KvType::q8_0)
        return scale * static_cast<float>(static_cast<int>(tile[(d / 4 * kKvTile + lane) * 4 + d % 4]) - 128);
    const auto two = static_cast<int>(tile[((group * 4 + in % 16 / 4) * kKvTile + lane) * 4 + in % 4]);
    return scale * static_cast<float>((two >> (in / 16 * 4) & 15) - 8);
}
static inline float kv_value(const KVLayer& c, const std::byte* tile, int lane, int d) {
    const int dim = c.head_dim_v;
    if (c.type == KvType::f16) return kv_half(tile, lane * dim + d);
    const float scale = kv_half(tile + kv_quant_bytes(dim, c.type), lane * (dim / kKvGroup) + d / kKvGroup);
    if (c.type == KvType::q8_0) return scale * static_cast<float>(static_cast<int8_t>(tile[lane * dim + d]));
    const auto two = static_cast<int>(tile[(lane * (dim / 16) + d / 16) * 8 + d % 8]);
    return scale * static_cast<float>((two >> (d % 16 / 8 * 4) & 15) - 8);
}

// Decodes positions [0, n_tokens) of the sequence with block table `blocks` to k [n_tokens][heads][head_dim]
// and v [n_tokens][heads][head_dim_v], for tests and for `zinc verify`.
static inline void kv_read(const KVLayer& c, const int32_t* blocks, int n_tokens, float* k, float* v) {
    for (int t = 0; t < n_tokens; ++t) {
        const int block = blocks[t / c.block_tokens], lane = t % kKvTile;
        if (block < 0 || block >= c.n_blocks) throw std::invalid_argument("KV cache: no such block");
        for (int h = 0; h < c.n_heads; ++h, k += c.head_dim, v += c.head_dim_v) {
            const std::byte* keys = kv_k_tile(c, block, h, t);
            for (int d = 0; d < c.head_dim; ++d) k[d] = kv_key(c, keys, lane, d);
            const std::byte* values = c.v_from_k ? nullptr : kv_v_tile(c, block, h, t);
            for (int d = 0; d < c.head_dim_v; ++d)
                v[d] = values ? kv_value(c, values, lane, d) : k[c.head_dim - c.head_dim_v + d];
        }
    }
}

}  // namespace zinc
