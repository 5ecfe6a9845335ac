// gate and gated_norm: rows scaled by a function of other rows, written as f32 or quantised on the way out.
#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

bool whole_rows(const Launch& l) { return l.out[0].act != Act::f32; }

Grid grid(const Launch& l, const Batch& batch) { return Grid(l.rows(batch), l.in[0].cols, whole_rows(l)); }

int gate_chunks(const Launch& l, const Batch& batch, int) { return grid(l, batch).chunks(); }

// in: x f32, g f32 of one column or of the columns of x; out: y = x sigmoid(g), f32 or q8. y may alias x.
void prepare_gate(Launch& l, const Attrs&) {
    require_operands(l, 2, 1);
    const int cols = l.in[0].cols;
    require_rows(l, l.in[0], "x", Act::f32, cols);
    require_rows(l, l.in[1], "g", Act::f32);
    require(l, l.in[1].cols == 1 || l.in[1].cols == cols, "g must have one column or those of x");
    require_output(l, l.out[0], "y", cols);
}

void run_gate(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Operand& out = l.out[0];
    const bool wide = l.in[1].cols > 1;
    grid(l, batch).each(chunk, [&](int r, int first, int last) {
        const float *x = l.in[0].row(r), *g = l.in[1].row(r);
        float* y = out.act == Act::f32 ? out.row(r) : scratch.get(static_cast<size_t>(last));
        const F32x16 factor = sigmoid(F32x16::set1(g[0]));
        for_lanes(first, last, [&](int i, auto n) {
            store(load(x + i, n) * (wide ? sigmoid(load(g + i, n)) : factor), y + i, n);
        });
        if (out.act != Act::f32) quantize_row(y, last, out.act, out.row<std::byte>(r));
    });
}

// in: x f32, z f32, weight (vector of group); out: y = x / rms(x) weight silu(z), the rms over each group of
// columns, f32 or q8. y may alias x or z.
struct Params {
    float eps;
    int group;
};

void prepare_norm(Launch& l, const Attrs& attrs) {
    require_operands(l, 3, 1);
    const int cols = l.in[0].cols;
    require_rows(l, l.in[0], "x", Act::f32, cols);
    require_rows(l, l.in[1], "z", Act::f32, cols);
    require_output(l, l.out[0], "y", cols);
    Params& p = l.as<Params>();
    p.eps = static_cast<float>(attrs.get("eps"));
    p.group = whole(l, attrs, "group", 1, cols);
    require(l, cols % p.group == 0, "group must divide the columns");
    require_vector(l, l.in[2], "weight", p.group);
}

int norm_chunks(const Launch& l, const Batch& batch, int) {
    return Grid(l.rows(batch), l.in[0].cols, true).chunks();
}

void run_norm(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const Operand& out = l.out[0];
    const float* weight = l.in[2].tensor->vector();
    Grid(l.rows(batch), l.in[0].cols, true).each(chunk, [&](int r, int, int cols) {
        const float *x = l.in[0].row(r), *z = l.in[1].row(r);
        float* y = out.act == Act::f32 ? out.row(r) : scratch.get(static_cast<size_t>(cols));
        for (int g = 0; g < cols; g += p.group) {
            const F32x16 factor = F32x16::set1(inverse_rms(x + g, p.group, p.eps));
            for_lanes(0, p.group, [&](int i, auto n) {
                const F32x16 normed = load(x + g + i, n) * factor * load(weight + i, n);
                store(normed * silu(load(z + g + i, n)), y + g + i, n);
            });
        }
        if (out.act != Act::f32) quantize_row(y, cols, out.act, out.row<std::byte>(r));
    });
}

}  // namespace

const Kernel gate_kernel{"gate", prepare_gate, gate_chunks, run_gate};
const Kernel gated_norm_kernel{"gated_norm", prepare_norm, norm_chunks, run_norm};

}  // namespace zinc::ZINC_LEVEL
