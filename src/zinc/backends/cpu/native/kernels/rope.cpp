// rope_table and rope_store: everything between the q, k and v projections and attention, in one launch.
//
// rope_table computes the cosines and sines of a step once for all layers. rope_store normalises and rotates
// the heads of q and k and writes k and v into the KV cache, so that keys and values are rounded (f16) or
// quantised (q8_0, q4_0) only once.
#include <cmath>
#include <cstring>

#include "kv_layout.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using table_in = operands::rope_table;

// ---- rope_table: rows of [cos of position * inv_freq | sin of position * inv_freq], times scale

struct TableScale {
    double scale, log_scale;
    int period, offset;
};

void prepare_table(Launch& l, const Attrs& attrs) {
    require_operands(l, table_in::n_inputs, 1);
    const int cols = l.out[0].cols;
    require(l, cols > 0 && cols % 2 == 0, "the table must have an even number of columns");
    require_rows(l, l.out[0], "the table", RowFormat::f32, cols);
    require_vector(l, l.in[table_in::inv_freq], "inv_freq", cols / 2);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    auto& s = l.as<TableScale>();
    s = {attrs.get("scale", 1.0), attrs.get("log_scale", 0.0), static_cast<int>(attrs.get("period", 1)),
         static_cast<int>(attrs.get("offset", 0))};
    require(l, s.period > 0, "the period must be positive");
}

Grid table_grid(const Launch& l, const Batch& batch) { return Grid(l.rows(batch), l.out[0].cols * 16, true); }

int table_chunks(const Launch& l, const Batch& batch, int) { return table_grid(l, batch).chunks(); }

void run_table(const Launch& l, const Batch& batch, int chunk, Scratch&) {
    const int half = l.out[0].cols / 2;
    const float* inv_freq = l.in[table_in::inv_freq].tensor->vector();
    const auto& s = l.as<TableScale>();
    table_grid(l, batch).each(chunk, [&](int t, int, int) {
        float* tab = l.out[0].row(t);
        const int periods = (batch.positions[t] + s.offset) / s.period;
        const double scale = s.scale * (1 + s.log_scale * std::log(1.0 + periods));
        for (int i = 0; i < half; ++i) {
            const double angle = static_cast<double>(batch.positions[t]) * static_cast<double>(inv_freq[i]);
            tab[i] = static_cast<float>(std::cos(angle) * scale);
            tab[half + i] = static_cast<float>(std::sin(angle) * scale);
        }
    });
}

// ---- rope_store: the rotated q may alias q

struct Params {
    int n_heads, n_kv_heads, head_dim, head_dim_v, rope_dims;
    bool neox, v_norm;
    float eps;
};

using in = operands::rope_store;

void prepare_store(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    Params& p = l.as<Params>();
    p.n_heads = whole(l, attrs, "n_heads", 1, 1 << 16);
    p.n_kv_heads = whole(l, attrs, "n_kv_heads", 1, 1 << 16);
    p.head_dim = whole(l, attrs, "head_dim", 16, kMaxHeadDim);
    p.rope_dims = whole(l, attrs, "rope_dims", 0, p.head_dim);
    p.neox = attrs.get("neox", 1) != 0;
    p.v_norm = attrs.get("v_norm", 0) != 0;
    p.eps = static_cast<float>(attrs.get("eps", 0));
    p.head_dim_v = p.head_dim;
    require(l, p.rope_dims % 2 == 0, "rope_dims must be even");
    require(l, p.n_heads % p.n_kv_heads == 0, "n_kv_heads must divide n_heads");
    require_rows(l, l.in[in::q], "q", RowFormat::f32, p.n_heads * p.head_dim);
    require_rows(l, l.out[0], "the output", RowFormat::f32, p.n_heads * p.head_dim);
    if (p.rope_dims) require_rows(l, l.in[in::table], "the table", RowFormat::f32, p.rope_dims);
    if (l.in[in::q_norm]) require_vector(l, l.in[in::q_norm], "q_norm", p.head_dim);
    if (l.in[in::k_norm]) require_vector(l, l.in[in::k_norm], "k_norm", p.head_dim);
    const bool stores = l.in[in::cache].kv, stores_v = stores && !l.in[in::cache].kv->v_from_k;
    require(l, stores == !!l.in[in::k] && stores_v == !!l.in[in::v],
            "k, v and the cache come together or not at all");
    if (const KVLayer* kv = l.in[in::cache].kv) {
        require(l, kv->n_heads == p.n_kv_heads && kv->head_dim == p.head_dim,
                "the cache has other heads than the attributes say");
        p.head_dim_v = kv->head_dim_v;
        require_rows(l, l.in[in::k], "k", RowFormat::f32, p.n_kv_heads * p.head_dim);
        if (stores_v) require_rows(l, l.in[in::v], "v", RowFormat::f32, p.n_kv_heads * p.head_dim_v);
    }
}

// Division into tokens x groups of KV heads, each with its query heads. A single token still gives several
// chunks.
struct StoreGrid {
    static constexpr int kTokens = 16;
    int tokens, heads_step, head_pieces;
    StoreGrid(const Params& p, int n_tokens) : tokens(n_tokens) {
        const int elements = std::min(n_tokens, kTokens) * (p.n_heads / p.n_kv_heads + 2) * p.head_dim;
        heads_step = std::clamp(1024 / std::max(1, elements), 1, p.n_kv_heads);
        head_pieces = (p.n_kv_heads + heads_step - 1) / heads_step;
    }
    int chunks() const { return (tokens + kTokens - 1) / kTokens * head_pieces; }
};

int store_chunks(const Launch& l, const Batch& batch, int) {
    return StoreGrid(l.as<Params>(), batch.n_tokens).chunks();
}

// y = x / rms(x), times weight if there is one. y may alias x.
void normalise(const float* x, const float* weight, float eps, int n, float* y) {
    const F32x16 factor = F32x16::set1(inverse_rms(x, n, eps));
    for_lanes(0, n, [&](int i, auto lanes) {
        const F32x16 v = load(x + i, lanes) * factor;
        store(weight ? v * load(weight + i, lanes) : v, y + i, lanes);
    });
}

void rotate(float* x, const float* tab, int rope_dims, bool neox) {
    const int half = rope_dims / 2;
    const float *cosine = tab, *sine = tab + half;
    if (!neox) {  // pairs (2i, 2i + 1)
        for (int i = 0; i < half; ++i) {
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosine[i] - b * sine[i];
            x[2 * i + 1] = a * sine[i] + b * cosine[i];
        }
        return;
    }
    for_lanes(0, half, [&](int i, auto n) {  // pairs (i, i + half)
        const F32x16 a = load(x + i, n), b = load(x + half + i, n);
        const F32x16 c = load(cosine + i, n), s = load(sine + i, n);
        store(fma(F32x16::zero() - b, s, a * c), x + i, n);
        store(fma(b, c, a * s), x + half + i, n);
    });
}

// Normalises (if there is a weight) and rotates (if there is a table) one head from x to y.
void transform(const Params& p, const float* x, const float* weight, const float* tab, float* y) {
    if (weight) {
        normalise(x, weight, p.eps, p.head_dim, y);
    } else if (x != y) {
        std::memcpy(y, x, static_cast<size_t>(p.head_dim) * sizeof(float));
    }
    if (tab) rotate(y, tab, p.rope_dims, p.neox);
}

// Saturates at 65504, the largest f16: an infinite key or value would make its whole row NaN.
inline void to_f16(F32x16 x, uint16_t* to) {
    const F32x16 limit = F32x16::set1(65504.0f);
    min(limit, max(F32x16::zero() - limit, x)).store_f16(to);
}

// Quantises a group of 32 to int8 and returns the f16 scale max|x| / 127. The rounded scale is used for the
// quants. Infinity or NaN in the group makes the scale NaN, so that attention shows it.
inline uint16_t quantise_group(const float* x, int8_t* quants) {
    const F32x16 a = F32x16::load(x), b = F32x16::load(x + 16);
    if (sum((a + b) * F32x16::zero()) != 0.0f) {
        std::memset(quants, 0, kKvGroup);
        return 0x7e00;
    }
    const uint16_t scale = f32_to_f16(hmax(max(abs(a), abs(b))) * (1.0f / 127.0f));
    const float d = f16_to_f32(scale);
    const F32x16 inverse = F32x16::set1(d > 0.0f ? 1.0f / d : 0.0f), limit = F32x16::set1(127.0f);
    to_i32(min(limit, max(F32x16::zero() - limit, a * inverse))).store_i8(quants);
    to_i32(min(limit, max(F32x16::zero() - limit, b * inverse))).store_i8(quants + 16);
    return scale;
}

// Quantises a group of 32 to four bits plus 8. As in Q4_0 files, the scale maps the value of largest
// magnitude to -8.
inline uint16_t quantise_group(const float* x, uint8_t* quants) {
    const F32x16 a = F32x16::load(x), b = F32x16::load(x + 16), zero = F32x16::zero();
    if (sum((a + b) * zero) != 0.0f) {
        std::memset(quants, 0, kKvGroup);
        return 0x7e00;
    }
    const float high = hmax(max(a, b)), low = hmax(max(zero - a, zero - b));
    const uint16_t scale = f32_to_f16((high > low ? high : -low) * (-1.0f / 8.0f));
    const float d = f16_to_f32(scale);
    const F32x16 inverse = F32x16::set1(d != 0.0f ? 1.0f / d : 0.0f);
    const F32x16 least = F32x16::set1(-8.0f), most = F32x16::set1(7.0f);
    for (int i = 0; i < kKvGroup; i += 16) {
        const F32x16 q = min(most, max(least, F32x16::load(x + i) * inverse));
        (to_i32(q) + I32x16::set1(8)).store_i8(reinterpret_cast<int8_t*>(quants) + i);
    }
    return scale;
}

void put(std::byte* to, uint16_t value) { std::memcpy(to, &value, sizeof value); }

void store_key(const KVLayer& kv, const float* x, int lane, std::byte* tile) {
    const int dim = kv.head_dim;
    if (kv.type == KvType::f16) {
        uint16_t half[16];
        for (int d = 0; d < dim; d += 16) {
            to_f16(F32x16::load(x + d), half);
            for (int i = 0; i < 16; ++i) put(tile + ((d + i) * kKvTile + lane) * 2, half[i]);
        }
        return;
    }
    std::byte* scales = tile + kv_quant_bytes(dim, kv.type);
    for (int g = 0; kv.type == KvType::q4_0 && g < dim / kKvGroup; ++g) {
        uint8_t quants[kKvGroup];
        put(scales + (g * kKvTile + lane) * 2, quantise_group(x + g * kKvGroup, quants));
        for (int i = 0; i < 16; i += 4) {
            uint32_t low, high;
            std::memcpy(&low, quants + i, 4);
            std::memcpy(&high, quants + 16 + i, 4);
            low |= high << 4;
            std::memcpy(tile + ((g * 4 + i / 4) * kKvTile + lane) * 4, &low, 4);
        }
    }
    for (int g = 0; kv.type == KvType::q8_0 && g < dim / kKvGroup; ++g) {
        int8_t quants[kKvGroup];
        put(scales + (g * kKvTile + lane) * 2, quantise_group(x + g * kKvGroup, quants));
        for (int i = 0; i < kKvGroup; i += 4) {
            uint32_t four;
            std::memcpy(&four, quants + i, 4);
            four ^= 0x80808080u;  // s8 + 128 as u8
            std::memcpy(tile + (((g * kKvGroup + i) / 4) * kKvTile + lane) * 4, &four, 4);
        }
    }
}

// Stores n keys at consecutive positions of a tile, from lane `lane` on. x has 16 rows of `stride` floats, of
// which n are keys. Only for f16: the stores of one key would be two bytes each.
void store_keys(const KVLayer& kv, const float* x, int64_t stride, int n, int lane, std::byte* tile) {
    float columns[16 * kKvTile];
    uint16_t half[kKvTile];
    for (int d = 0; d < kv.head_dim; d += 16) {
        transpose16(x + d, stride, columns, kKvTile);
        for (int i = 0; i < 16; ++i) {
            to_f16(F32x16::load(columns + i * kKvTile), half);
            std::byte* to = tile + ((d + i) * kKvTile + lane) * 2;
            if (n == kKvTile / 2) {  // a constant size is copied without a call
                std::memcpy(to, half, kKvTile);
            } else {
                std::memcpy(to, half, static_cast<size_t>(n) * 2);
            }
        }
    }
}

void store_value(const KVLayer& kv, const float* x, int lane, std::byte* tile) {
    const int dim = kv.head_dim_v;
    if (kv.type == KvType::f16) {
        auto* row = reinterpret_cast<uint16_t*>(tile) + lane * dim;
        for (int d = 0; d < dim; d += 16) to_f16(F32x16::load(x + d), row + d);
        return;
    }
    std::byte* scales = tile + kv_quant_bytes(dim, kv.type) + lane * (dim / kKvGroup) * 2;
    if (kv.type == KvType::q8_0) {
        auto* row = reinterpret_cast<int8_t*>(tile) + lane * dim;
        for (int g = 0; g < dim / kKvGroup; ++g)
            put(scales + g * 2, quantise_group(x + g * kKvGroup, row + g * kKvGroup));
        return;
    }
    auto* row = reinterpret_cast<uint8_t*>(tile) + lane * (dim / 2);
    for (int g = 0; g < dim / kKvGroup; ++g) {
        uint8_t quants[kKvGroup];
        put(scales + g * 2, quantise_group(x + g * kKvGroup, quants));
        for (int i = 0; i < 16; ++i) {
            const uint8_t* low = quants + i / 8 * 16 + i % 8;
            row[g * 16 + i] = static_cast<uint8_t>(low[0] | low[8] << 4);
        }
    }
}

// Prefetches the memory of n positions of a head, which lie in one tile, for writing. The keys of n positions
// touch every line of a tile.
void prefetch_tile(const KVLayer& kv, int block, int head, int position, int n) {
    auto lines = [](const std::byte* p, int64_t bytes) {
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 1);
    };
    lines(kv_k_tile(kv, block, head, position), kv_tile_bytes(kv.head_dim, kv.type));
    if (kv.v_from_k) return;
    const int64_t row = kv_quant_bytes(kv.head_dim_v, kv.type) / kKvTile;
    lines(kv_v_tile(kv, block, head, position) + position % kKvTile * row, n * row);
}

// Calls f(first, n) for each run of token rows in [first, last) whose keys lie in one tile.
template <class F>
void each_run(const Batch& batch, int first, int last, F&& f) {
    for (int t = first, n; t < last; t += n) {
        const int room = kKvTile - batch.positions[t] % kKvTile, end = std::min(last, t + room);
        for (n = 1; t + n < end && batch.sequence[t + n] == batch.sequence[t];) ++n;
        f(t, n);
    }
}

void run_store(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params& p = l.as<Params>();
    const StoreGrid grid(p, batch.n_tokens);
    const int first = chunk / grid.head_pieces * StoreGrid::kTokens;
    const int head0 = chunk % grid.head_pieces * grid.heads_step;
    const int last = std::min(batch.n_tokens, first + StoreGrid::kTokens);
    const int head1 = std::min(p.n_kv_heads, head0 + grid.heads_step), queries = p.n_heads / p.n_kv_heads;
    const float* q_norm = l.in[in::q_norm] ? l.in[in::q_norm].tensor->vector() : nullptr;
    const float* k_norm = l.in[in::k_norm] ? l.in[in::k_norm].tensor->vector() : nullptr;
    const KVLayer* kv = l.in[in::cache].kv;
    const int64_t width = std::max(p.head_dim, p.head_dim_v);
    float* heads = scratch.get(static_cast<size_t>(kKvTile * width));
    auto table = [&](int t) { return p.rope_dims ? l.in[in::table].row(t) : nullptr; };

    if (kv)
        each_run(batch, first, last, [&](int t, int n) {
            const int position = batch.positions[t];
            const int block = kv_block(batch, *kv, batch.sequence[t], position);
            for (int h = head0; h < head1; ++h) prefetch_tile(*kv, block, h, position, n);
        });
    for (int t = first; t < last; ++t)
        for (int h = head0 * queries; h < head1 * queries; ++h)
            transform(p, l.in[in::q].row(t) + h * p.head_dim, q_norm, table(t),
                      l.out[0].row(t) + h * p.head_dim);
    if (!kv) return;
    each_run(batch, first, last, [&](int begin, int n) {
        const int position = batch.positions[begin], lane = position % kKvTile;
        const int block = kv_block(batch, *kv, batch.sequence[begin], position);
        for (int h = head0; h < head1; ++h) {
            std::byte* keys = kv_k_tile(*kv, block, h, position);
            const bool together = kv->type == KvType::f16 && n >= kKvTile / 2;
            for (int i = 0; i < n; ++i) {
                float* head = heads + (together ? i * width : 0);
                transform(p, l.in[in::k].row(begin + i) + h * p.head_dim, k_norm, table(begin + i), head);
                if (!together) store_key(*kv, head, lane + i, keys);
            }
            if (together) store_keys(*kv, heads, width, n, lane, keys);
            for (int i = 0; i < n && !kv->v_from_k; ++i) {
                const float* v = l.in[in::v].row(begin + i) + h * p.head_dim_v;
                if (p.v_norm) {
                    normalise(v, nullptr, p.eps, p.head_dim_v, heads);
                    v = heads;
                }
                store_value(*kv, v, lane + i, kv_v_tile(*kv, block, h, position));
            }
        }
    });
}

}  // namespace

const Kernel rope_table_kernel{"rope_table", prepare_table, table_chunks, run_table};
const Kernel rope_store_kernel{"rope_store", prepare_store, store_chunks, run_store};

}  // namespace zinc::ZINC_LEVEL
