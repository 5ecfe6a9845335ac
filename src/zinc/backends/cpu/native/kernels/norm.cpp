// rms_norm: y = x / rms(x) * weight (+ residual), over whole rows or over groups of columns, written as f32
// or quantised for the integer kernels on the way out.
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

// in: x f32, weight? (vector of cols or of group), residual? f32; out: y f32 or q8, may alias x or residual
struct Params {
    float eps;
    int group;
    bool repeat;  // one weight for all groups
};

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, 3, 1);
    const int cols = l.in[0].cols;
    require_rows(l, l.in[0], "x", Act::f32, cols);
    require_output(l, l.out[0], "y", cols);
    Params& p = l.as<Params>();
    p.eps = static_cast<float>(attrs.get("eps"));
    p.group = static_cast<int>(attrs.get("group", cols));
    require(l, p.group > 0 && cols % p.group == 0, "group must divide the columns");
    p.repeat = l.in[1].tensor && l.in[1].tensor->cols == p.group;
    if (l.in[1]) require_vector(l, l.in[1], "weight", p.repeat ? p.group : cols);
    if (l.in[2]) {
        require_rows(l, l.in[2], "residual", Act::f32, cols);
        require(l, l.out[0].act == Act::f32, "a residual needs an f32 output");
    }
}

int chunks(const Launch& l, const Batch& batch, int) {
    return Grid(l.rows(batch), l.in[0].cols, true).chunks();
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const Operand &in = l.in[0], &residual = l.in[2], &out = l.out[0];
    const float* weight = l.in[1] ? l.in[1].tensor->vector() : nullptr;
    Grid(l.rows(batch), in.cols, true).each(chunk, [&](int r, int, int cols) {
        const float* x = in.row(r);
        const float* add = residual ? residual.row(r) : nullptr;
        float* y = out.act == Act::f32 ? out.row(r) : scratch.get(static_cast<size_t>(cols));
        for (int g = 0; g < cols; g += p.group) {
            const F32x16 factor = F32x16::set1(inverse_rms(x + g, p.group, p.eps));
            const float* w = weight ? weight + (p.repeat ? 0 : g) : nullptr;
            for_lanes(0, p.group, [&](int i, auto lanes) {
                F32x16 v = load(x + g + i, lanes) * factor;
                if (w) v = v * load(w + i, lanes);
                if (add) v = v + load(add + g + i, lanes);
                store(v, y + g + i, lanes);
            });
        }
        if (out.act != Act::f32) quantize_row(y, cols, out.act, out.row<std::byte>(r));
    });
}

}  // namespace

const Kernel rms_norm_kernel{"rms_norm", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
