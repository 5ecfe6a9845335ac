// moe_glu: h[slot] = activation(x[token] G[e]^T + b) * (x[token] U[e]^T + b) for the expert e of every slot.
// Without U, the second factor is 1.
//
// With few slots, the work is divided into runs x pieces of the columns of h, so that only chosen weights are
// read and all threads share each expert. The chunk that completes a block of columns of h quantises the
// block. With many slots, the work is divided into experts x pieces of whole blocks; all rows of an expert
// are multiplied together and quantised by the same chunk.
#include <atomic>
#include <new>

#include "math.h"
#include "moe.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::moe_glu;

struct Params {
    Glu glu;
    int top_k, ff, tiles, n_experts;
    int64_t unit_bytes;  // of one tile of gate and one of up
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    for (const Operand* w : {&l.in[in::gate], &l.in[in::up]}) {
        if (w == &l.in[in::up] && !*w) continue;
        require_experts(l, *w, l.in[in::order], l.in[in::starts], "a weight");
        require_rows(l, l.in[in::x], "x", w->tensor->format->row_format, w->tensor->cols);
    }
    const PackedTensor& gate = *l.in[in::gate].tensor;
    const PackedTensor* up = l.in[in::up].tensor;
    require(l, !up || up->rows == gate.rows, "gate and up differ in rows");
    require_expert_vector(l, l.in[in::gate_bias], "the gate bias", gate);
    require(l, up || !l.in[in::up_bias], "an up bias needs an up weight");
    if (up) require_expert_vector(l, l.in[in::up_bias], "the up bias", *up);
    Params& p = l.as<Params>();
    p.glu.fn = static_cast<ActivationFn>(whole(l, attrs, "activation", 0, kLastActivation));
    p.glu.alpha = static_cast<float>(attrs.get("alpha", 1.702));
    p.glu.limit = static_cast<float>(attrs.get("limit", 7.0));
    p.top_k = l.in[in::order].cols;
    p.ff = static_cast<int>(gate.rows);
    p.tiles = static_cast<int>(tiles_of(gate));
    p.n_experts = static_cast<int>(gate.planes);
    p.unit_bytes = gate.tile_bytes + (up ? up->tile_bytes : 0);
    require_runs_of(l, l.out[0], p.top_k, p.ff);
    require(l, has_whole_blocks(l.out[0].format, p.ff), "h cannot be quantised in groups of 32");
}

// Division of a step into chunks: heads (slots if there are few, else experts) x pieces of `step` tiles.
struct GluGrid {
    bool few;
    int heads, step, pieces;
    GluGrid(const Params& p, int n_slots, int n_threads)
        : few(n_slots <= p.n_experts), heads(few ? n_slots : p.n_experts) {
        constexpr int kMany = 256 / kTileRows;  // whole blocks of every row format
        constexpr int64_t kChunkBytes = 48 << 10;
        const int64_t share = int64_t{n_slots} * p.tiles / (16 * n_threads);
        const int64_t smallest = std::max<int64_t>(1, kChunkBytes / p.unit_bytes);
        step = few ? static_cast<int>(std::clamp<int64_t>(std::max(share, smallest), 1, p.tiles)) : kMany;
        pieces = (p.tiles + step - 1) / step;
    }
};

GluGrid grid(const Launch& l, const Batch& b) {
    const auto& p = l.as<Params>();
    return {p, l.rows(b) * p.top_k, l.n_threads};
}

int blocks_of(const Params& p, RowFormat format) {
    return (p.ff + format_block(format) - 1) / format_block(format);
}

// With few slots and quantised h, `common` holds h as floats by slot, and `shared` counts the finished tiles
// of each (slot, block).
int chunks(const Launch& l, const Batch& b, int) {
    const auto& p = l.as<Params>();
    const GluGrid g = grid(l, b);
    const RowFormat format = l.out[0].format;
    if (g.few && format != RowFormat::f32) {
        grow<float>(*l.common, static_cast<size_t>(g.heads) * static_cast<size_t>(p.ff));
        const size_t n = static_cast<size_t>(g.heads) * static_cast<size_t>(blocks_of(p, format));
        auto* counters = grow<std::atomic<int>>(l.shared, n);
        for (size_t i = 0; i < n; ++i) new (counters + i) std::atomic<int>(0);
    }
    return g.heads * g.pieces;
}

std::byte* hidden(const Launch& l, int slot) {
    const auto& p = l.as<Params>();
    return l.out[0].row<std::byte>(slot / p.top_k) + slot % p.top_k * run_bytes(l.out[0].format, p.ff);
}

// Computes tiles [tile, last) of the columns of h for the rows of a run of `expert`. to(i) returns the
// address of column tile * 16 of the i-th row.
template <class To>
void products(const Launch& l, int expert, const RunRows& rows, int tile, int last, To&& to) {
    const auto& p = l.as<Params>();
    const PackedTensor& gate = *l.in[in::gate].tensor;
    const PackedTensor* up = l.in[in::up] ? l.in[in::up].tensor : nullptr;
    for (int at = tile; at < last; ++at) {
        if (!up) {
            gate.format->matmul(
                product(rows, gate.tile(expert, at), nullptr, gate.tile(expert, at + 1), nullptr, gate.cols));
        } else if (gate.format == up->format) {
            gate.format->matmul(product(rows, gate.tile(expert, at), up->tile(expert, at),
                                        gate.tile(expert, at + 1), up->tile(expert, at + 1), gate.cols));
        } else {
            TileMatmul half =
                product(rows, gate.tile(expert, at), nullptr, up->tile(expert, at), nullptr, gate.cols);
            gate.format->matmul(half);
            half.tile[0] = up->tile(expert, at);
            half.next[0] = gate.tile(expert, at + 1);
            half.out += kTileRows;
            up->format->matmul(half);
        }
        const int64_t row = int64_t{at} * kTileRows, biases = int64_t{expert} * p.ff + row;
        const int lanes = static_cast<int>(std::min<int64_t>(kTileRows, p.ff - row));
        F32x16 gate_bias = F32x16::zero(), up_bias = F32x16::zero();
        if (l.in[in::gate_bias])
            gate_bias = F32x16::load_n(l.in[in::gate_bias].tensor->vector() + biases, lanes);
        if (l.in[in::up_bias]) up_bias = F32x16::load_n(l.in[in::up_bias].tensor->vector() + biases, lanes);
        for (int i = 0; i < rows.n; ++i) {
            const float* sums = rows.sums + i * kOutStride;
            const F32x16 g = F32x16::load(sums) + gate_bias;
            const F32x16 u = up ? F32x16::load(sums + kTileRows) + up_bias : F32x16::set1(1.0f);
            glu(p.glu, g, u).store_n(to(i) + (at - tile) * kTileRows, lanes);
        }
    }
}

// Marks tiles [tile, last) of a run as finished and quantises the blocks that they complete.
void finish(const Launch& l, const Runs& runs, int expert, int tile, int last) {
    const auto& p = l.as<Params>();
    const RowFormat format = l.out[0].format;
    const int block = format_block(format), n_blocks = blocks_of(p, format);
    auto* counters =
        reinterpret_cast<std::atomic<int>*>(l.shared.data) + int64_t{runs.first(expert)} * n_blocks;
    const float* floats = reinterpret_cast<const float*>(l.common->data);
    for (int first = tile * kTileRows / block * block; first < std::min(p.ff, last * kTileRows);
         first += block) {
        const int cols = std::min(block, p.ff - first), tiles = (cols + kTileRows - 1) / kTileRows;
        const int from = std::max(tile, first / kTileRows), to = std::min(last, first / kTileRows + tiles);
        if (counters[first / block].fetch_add(to - from, std::memory_order_acq_rel) + to - from != tiles)
            continue;
        for (int at = runs.first(expert); at < runs.end(expert); ++at) {
            const int slot = runs.slot(at);
            quantize_part(floats + int64_t{slot} * p.ff + first, first, cols, p.ff, format, hidden(l, slot));
        }
    }
}

void run(const Launch& l, const Batch& b, int chunk, Scratch& scratch) {
    const auto& p = l.as<Params>();
    const GluGrid g = grid(l, b);
    const Runs runs(l.in[in::order], l.in[in::starts], l.rows(b));
    const int head = chunk / g.pieces, expert = g.few ? runs.expert(head) : head;
    if (g.few && runs.first(expert) != head) return;  // the chunk of the first slot computes the whole run
    const Operand &x = l.in[in::x], &h = l.out[0];
    const int tile = chunk % g.pieces * g.step, last = std::min(p.tiles, tile + g.step);
    prefetch_start(l.in[in::gate].tensor->tile(expert, tile));
    if (l.in[in::up]) prefetch_start(l.in[in::up].tensor->tile(expert, tile));
    const bool staged = g.few && h.format != RowFormat::f32;
    const int width = h.format == RowFormat::f32 || g.few
                          ? 0
                          : (last - tile) * kTileRows;  // columns staged as floats before they are quantised

    runs.panels(expert, [&](int first, int n) {
        RunRows rows(scratch, n, row_bytes(x.format, x.cols),
                     static_cast<size_t>(n) * static_cast<size_t>(width));
        for (int i = 0; i < n; ++i) {
            rows.slots[i] = runs.slot(first + i);
            rows.take(i, x.row<std::byte>(rows.slots[i] / p.top_k));
        }
        float* staging = reinterpret_cast<float*>(l.common->data);
        products(l, expert, rows, tile, last, [&](int i) {
            if (width) return rows.floats + i * width;
            if (staged) return staging + int64_t{rows.slots[i]} * p.ff + tile * kTileRows;
            return reinterpret_cast<float*>(hidden(l, rows.slots[i])) + tile * kTileRows;
        });
        const int cols = std::min(width, p.ff - tile * kTileRows);
        for (int i = 0; width && i < n; ++i)
            quantize_part(rows.floats + i * width, tile * kTileRows, cols, p.ff, h.format,
                          hidden(l, rows.slots[i]));
    });
    if (staged) finish(l, runs, expert, tile, last);
}

}  // namespace

const Kernel moe_glu_kernel{"moe_glu", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
