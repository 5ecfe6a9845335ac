// x[t] = row ids[t] of a packed table, times a constant. The table is packed as a weight, so that a model
// whose head is its embedding holds it once.      in   table      out   x      attrs   scale = 1
#include <stdexcept>

#include "../simd.h"
#include "linear.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {
namespace {

constexpr int kRowsPerChunk = 4;

struct Params {
    float scale;
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, 1, 1);
    require(l, l.dim == Dim::tokens, "its rows are tokens");
    require(l, l.in[0].tensor && l.in[0].tensor->format && l.in[0].tensor->planes == 1,
            "the table must be a packed matrix");
    require_rows(l, l.out[0], "x", Act::f32, l.in[0].tensor->cols);
    l.as<Params>().scale = static_cast<float>(attrs.get("scale", 1.0));
}

int chunks(const Launch& l, const Batch& b, int) { return (l.rows(b) + kRowsPerChunk - 1) / kRowsPerChunk; }

void run(const Launch& l, const Batch& b, int chunk, Scratch&) {
    const PackedTensor& table = *l.in[0].tensor;
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
