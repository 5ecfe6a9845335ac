// glu: h = activation(gate) * up, or activation(gate) if there is no up, stored as f32 or quantised for the
// down projection.
#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::glu;

// h may alias gate or up.
void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    const int cols = l.in[in::gate].cols;
    require_rows(l, l.in[in::gate], "gate", RowFormat::f32, cols);
    if (l.in[in::up]) require_rows(l, l.in[in::up], "up", RowFormat::f32, cols);
    require_output(l, l.out[0], "h", cols);
    Glu& p = l.as<Glu>();
    p.fn = static_cast<ActivationFn>(whole(l, attrs, "activation", 0, kLastActivation));
    p.alpha = static_cast<float>(attrs.get("alpha", 1.702));
    p.limit = static_cast<float>(attrs.get("limit", 7.0));
}

Grid grid(const Launch& l, const Batch& batch) {
    return Grid(l.rows(batch), l.in[in::gate].cols, l.out[0].format != RowFormat::f32);
}

int chunks(const Launch& l, const Batch& batch, int) { return grid(l, batch).chunks(); }

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Glu p = l.as<Glu>();
    const Operand& out = l.out[0];
    grid(l, batch).each(chunk, [&](int r, int first, int last) {
        const float* gate = l.in[in::gate].row(r);
        const float* up = l.in[in::up] ? l.in[in::up].row(r) : nullptr;
        float* h = out.format == RowFormat::f32 ? out.row(r) : scratch.get(static_cast<size_t>(last));
        for_lanes(first, last, [&](int i, auto n) {
            const F32x16 u = up ? load(up + i, n) : F32x16::set1(1.0f);
            store(glu(p, load(gate + i, n), u), h + i, n);
        });
        if (out.format != RowFormat::f32) quantize_row(h, last, out.format, out.row<std::byte>(r));
    });
}

}  // namespace

const Kernel glu_kernel{"glu", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
