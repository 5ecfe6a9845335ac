// glu: h = act(gate) * up, written as f32 or quantised for the down projection on the way out.
#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

// in: gate f32, up f32; out: h f32 or q8. h may alias gate or up.
void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, 2, 1);
    const int cols = l.in[0].cols;
    require_rows(l, l.in[0], "gate", Act::f32, cols);
    require_rows(l, l.in[1], "up", Act::f32, cols);
    require_output(l, l.out[0], "h", cols);
    Glu& p = l.as<Glu>();
    p.act = static_cast<Activation>(whole(l, attrs, "act", 0, 3));
    p.alpha = static_cast<float>(attrs.get("alpha", 1.702));
    p.limit = static_cast<float>(attrs.get("limit", 7.0));
}

Grid grid(const Launch& l, const Batch& batch) {
    return Grid(l.rows(batch), l.in[0].cols, l.out[0].act != Act::f32);
}

int chunks(const Launch& l, const Batch& batch, int) { return grid(l, batch).chunks(); }

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Glu p = l.as<Glu>();
    const Operand& out = l.out[0];
    grid(l, batch).each(chunk, [&](int r, int first, int last) {
        const float *gate = l.in[0].row(r), *up = l.in[1].row(r);
        float* h = out.act == Act::f32 ? out.row(r) : scratch.get(static_cast<size_t>(last));
        for_lanes(first, last,
                  [&](int i, auto n) { store(glu(p, load(gate + i, n), load(up + i, n)), h + i, n); });
        if (out.act != Act::f32) quantize_row(h, last, out.act, out.row<std::byte>(r));
    });
}

}  // namespace

const Kernel glu_kernel{"glu", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
