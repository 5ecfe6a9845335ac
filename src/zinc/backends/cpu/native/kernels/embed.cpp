// embed: x[t] = scale * row ids[t] of the table. The table is packed like a weight, so that a model whose
// output projection is its embedding stores it once.
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
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    require(l, l.dim == Dim::tokens, "must have one row for each token");
    require(l,
            l.in[in::table].tensor && l.in[in::table].tensor->format && l.in[in::table].tensor->planes == 1,
            "the table must be a packed matrix");
    require_rows(l, l.out[0], "x", RowFormat::f32, l.in[in::table].tensor->cols);
    l.as<Params>().scale = static_cast<float>(attrs.get("scale", 1.0));
}

int chunks(const Launch& l, const Batch& b, int) { return (l.rows(b) + kRowsPerChunk - 1) / kRowsPerChunk; }

void run(const Launch& l, const Batch& b, int chunk, Scratch&) {
    const PackedTensor& table = *l.in[in::table].tensor;
    const float scale = l.as<Params>().scale;
    const int last = std::min(b.n_tokens, (chunk + 1) * kRowsPerChunk);
    for (int t = chunk * kRowsPerChunk; t < last; ++t) {
        const int32_t id = b.ids[t];
        if (id < 0 || id >= table.rows)
            throw std::invalid_argument("token id " + std::to_string(id) + " is outside the vocabulary of " +
                                        std::to_string(table.rows));
        float* x = l.out[0].row(t);
        table.format->decode(table.tile(0, id / kTileRows), table.cols, id % kTileRows, x);
        if (scale != 1.0f)
            for (int64_t k = 0; k < table.cols; ++k) x[k] *= scale;
    }
}

}  // namespace

const Kernel embed_kernel{"embed", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
