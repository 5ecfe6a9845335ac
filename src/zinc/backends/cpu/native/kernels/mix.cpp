// mix: y_i = weight * sum over j of c_ij x_j for runs of columns x_j, plus a residual. y is stored as f32 or,
// without a residual, quantised for integer kernels.
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::mix;

struct Params {
    int n_inputs, n_outputs, width;  // width: columns of a run
};

// y may alias the residual.
void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    const int cols = l.out[0].cols;
    Params& p = l.as<Params>();
    p.n_outputs = whole(l, attrs, "n_outputs", 1, cols);
    require(l, cols % p.n_outputs == 0, "n_outputs must divide the columns");
    p.width = cols / p.n_outputs;
    p.n_inputs = whole(l, attrs, "n_inputs", 1, std::max(1, l.in[in::x].cols));
    require_rows(l, l.in[in::x], "x", RowFormat::f32, p.n_inputs * p.width);
    if (l.in[in::coefficients])
        require_rows(l, l.in[in::coefficients], "coefficients", RowFormat::f32, p.n_inputs * p.n_outputs);
    if (l.in[in::weight]) require_vector(l, l.in[in::weight], "weight", p.width);
    require_output(l, l.out[0], "y", cols);
    if (l.in[in::residual]) {
        require_rows(l, l.in[in::residual], "residual", RowFormat::f32, cols);
        require(l, l.out[0].format == RowFormat::f32, "a residual needs an f32 output");
    }
}

Grid grid(const Launch& l, const Batch& batch) { return Grid(l.rows(batch), l.out[0].cols, true); }

int chunks(const Launch& l, const Batch& batch, int) { return grid(l, batch).chunks(); }

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const Operand &out = l.out[0], &coefficients = l.in[in::coefficients], &residual = l.in[in::residual];
    const float* weight = l.in[in::weight] ? l.in[in::weight].tensor->vector() : nullptr;
    grid(l, batch).each(chunk, [&](int r, int, int cols) {
        const float* x = l.in[in::x].row(r);
        const float* c = coefficients ? coefficients.row(r) : nullptr;
        const float* add = residual ? residual.row(r) : nullptr;
        float* y = out.format == RowFormat::f32 ? out.row(r) : scratch.get(static_cast<size_t>(cols));
        for (int o = 0; o < p.n_outputs; ++o) {
            const int first = o * p.width;
            for_lanes(0, p.width, [&](int i, auto lanes) {
                F32x16 v = F32x16::zero();
                for (int j = 0; j < p.n_inputs; ++j) {
                    const F32x16 factor = F32x16::set1(c ? c[o * p.n_inputs + j] : 1.0f);
                    v = fma(factor, load(x + j * p.width + i, lanes), v);
                }
                if (weight) v = v * load(weight + i, lanes);
                if (add) v = v + load(add + first + i, lanes);
                store(v, y + first + i, lanes);
            });
        }
        if (out.format != RowFormat::f32) quantize_row(y, cols, out.format, out.row<std::byte>(r));
    });
}

}  // namespace

const Kernel mix_kernel{"mix", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
