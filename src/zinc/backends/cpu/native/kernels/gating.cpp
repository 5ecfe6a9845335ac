// gate and gated_norm: rows scaled by a function of other rows, stored as f32 or quantised.
#include "delta_math.h"
#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using gate_in = operands::gate;
using norm_in = operands::gated_norm;

bool whole_rows(const Launch& l) { return l.out[0].format != RowFormat::f32; }

Grid grid(const Launch& l, const Batch& batch) {
    return Grid(l.rows(batch), l.in[gate_in::x].cols, whole_rows(l));
}

int gate_chunks(const Launch& l, const Batch& batch, int) { return grid(l, batch).chunks(); }

// y = x * f(g), where each column of g scales a run of as many columns of x. f is sigmoid, or with the
// attribute `softplus` that function. y may alias x.
struct GateParams {
    bool softplus;
};

void prepare_gate(Launch& l, const Attrs& attrs) {
    require_operands(l, gate_in::n_inputs, 1);
    const int cols = l.in[gate_in::x].cols;
    require_rows(l, l.in[gate_in::x], "x", RowFormat::f32, cols);
    require_rows(l, l.in[gate_in::g], "g", RowFormat::f32);
    require(l, cols % l.in[gate_in::g].cols == 0, "the columns of g must divide those of x");
    require_output(l, l.out[0], "y", cols);
    l.as<GateParams>().softplus = attrs.get("softplus", 0) != 0;
}

template <class Function>
void run_gates(const Launch& l, const Batch& batch, int chunk, Scratch& scratch, Function&& function) {
    const Operand& out = l.out[0];
    const int run = l.in[gate_in::x].cols / l.in[gate_in::g].cols;
    grid(l, batch).each(chunk, [&](int r, int first, int last) {
        const float *x = l.in[gate_in::x].row(r), *g = l.in[gate_in::g].row(r);
        float* y = out.format == RowFormat::f32 ? out.row(r) : scratch.get(static_cast<size_t>(last));
        if (run == 1) {
            for_lanes(first, last,
                      [&](int i, auto n) { store(load(x + i, n) * function(load(g + i, n)), y + i, n); });
        } else {
            for (int at = first; at < last;) {
                const int end = std::min(last, (at / run + 1) * run);
                const F32x16 factor = function(F32x16::set1(g[at / run]));
                for_lanes(at, end, [&](int i, auto n) { store(load(x + i, n) * factor, y + i, n); });
                at = end;
            }
        }
        if (out.format != RowFormat::f32) quantize_row(y, last, out.format, out.row<std::byte>(r));
    });
}

void run_gate(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    if (l.as<GateParams>().softplus)
        run_gates(l, batch, chunk, scratch, [](F32x16 g) { return softplus(g); });
    else
        run_gates(l, batch, chunk, scratch, [](F32x16 g) { return sigmoid(g); });
}

// y = x / rms(x) * weight * silu(z), with the rms of each group of columns, or with `gate_first`
// y = u / rms(u) * weight with u = x * silu(z). y may alias x or z. The weight is that of a group, or with
// `gate_first` of all columns.
struct Params {
    float eps;
    int group;
    bool gate_first;
};

void prepare_norm(Launch& l, const Attrs& attrs) {
    require_operands(l, norm_in::n_inputs, 1);
    const int cols = l.in[norm_in::x].cols;
    require_rows(l, l.in[norm_in::x], "x", RowFormat::f32, cols);
    require_rows(l, l.in[norm_in::z], "z", RowFormat::f32, cols);
    require_output(l, l.out[0], "y", cols);
    Params& p = l.as<Params>();
    p.eps = static_cast<float>(attrs.get("eps"));
    p.group = whole(l, attrs, "group", 1, cols);
    require(l, cols % p.group == 0, "group must divide the columns");
    p.gate_first = whole(l, attrs, "gate_first", 0, 1) != 0;
    require_vector(l, l.in[norm_in::weight], "weight", p.gate_first ? cols : p.group);
}

int norm_chunks(const Launch& l, const Batch& batch, int) {
    return Grid(l.rows(batch), l.in[norm_in::x].cols, true).chunks();
}

void run_norm(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const Operand& out = l.out[0];
    const float* weight = l.in[norm_in::weight].tensor->vector();
    Grid(l.rows(batch), l.in[norm_in::x].cols, true).each(chunk, [&](int r, int, int cols) {
        const float *x = l.in[norm_in::x].row(r), *z = l.in[norm_in::z].row(r);
        float* y = out.format == RowFormat::f32 ? out.row(r) : scratch.get(static_cast<size_t>(cols));
        for (int g = 0; g < cols && p.gate_first; g += p.group) {
            for_lanes(g, g + p.group,
                      [&](int i, auto n) { store(load(x + i, n) * silu(load(z + i, n)), y + i, n); });
            const F32x16 factor = F32x16::set1(inverse_rms(y + g, p.group, p.eps));
            for_lanes(g, g + p.group,
                      [&](int i, auto n) { store(load(y + i, n) * factor * load(weight + i, n), y + i, n); });
        }
        for (int g = 0; g < cols && !p.gate_first; g += p.group) {
            const F32x16 factor = F32x16::set1(inverse_rms(x + g, p.group, p.eps));
            for_lanes(0, p.group, [&](int i, auto n) {
                const F32x16 normed = load(x + g + i, n) * factor * load(weight + i, n);
                store(normed * silu(load(z + g + i, n)), y + g + i, n);
            });
        }
        if (out.format != RowFormat::f32) quantize_row(y, cols, out.format, out.row<std::byte>(r));
    });
}

}  // namespace

const Kernel gate_kernel{"gate", prepare_gate, gate_chunks, run_gate};
const Kernel gated_norm_kernel{"gated_norm", prepare_norm, norm_chunks, run_norm};

}  // namespace zinc::ZINC_LEVEL
