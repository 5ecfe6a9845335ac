// embed: x[t] = scale * row ids[t] of the table, or row positions[t]. The table is packed like a weight, so
// that a model whose output projection is its embedding stores it once.
#include <stdexcept>

#include "../simd.h"
#include "linear.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::embed;

constexpr int kRowsPerChunk = 4;

struct Params {
    float scale;
    bool by_position;
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    require(l,
            l.in[in::table].tensor && l.in[in::table].tensor->format && l.in[in::table].tensor->planes == 1,
            "the table must be a packed matrix");
    require_rows(l, l.out[0], "x", RowFormat::f32, l.in[in::table].tensor->cols);
    l.as<Params>() = {static_cast<float>(attrs.get("scale", 1.0)), attrs.get("by_position", 0.0) != 0};
}

int chunks(const Launch& l, const Batch& b, int) { return (l.rows(b) + kRowsPerChunk - 1) / kRowsPerChunk; }

void run(const Launch& l, const Batch& b, int chunk, Scratch&) {
    const PackedTensor& table = *l.in[in::table].tensor;
    const Params p = l.as<Params>();
    const int last = std::min(b.n_tokens, (chunk + 1) * kRowsPerChunk);
    for (int t = chunk * kRowsPerChunk; t < last; ++t) {
        const int32_t id = p.by_position ? b.positions[t] : b.ids[t];
        if (id < 0 || id >= table.rows) {
            const std::string what = p.by_position ? "position " : "token id ";
            const std::string of =
                p.by_position ? " is outside the table of " : " is outside the vocabulary of ";
            throw std::invalid_argument(what + std::to_string(id) + of + std::to_string(table.rows));
        }
        float* x = l.out[0].row(t);
        table.format->decode(table.tile(0, id / kTileRows), table.cols, id % kTileRows, x);
        if (p.scale != 1.0f)
            for (int64_t k = 0; k < table.cols; ++k) x[k] *= p.scale;
    }
}

}  // namespace

const Kernel embed_kernel{"embed", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
