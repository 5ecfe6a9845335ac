// rms_norm: y = x / rms(x) * weight + residual. layer_norm: y = (x - mean(x)) / rms(x - mean(x)) * weight +
// bias. Both normalise whole rows or groups of columns. y is stored as f32 or, without a residual, quantised
// for integer kernels. match_rms: y = x / rms(x) * rms(like). statistical_top: y = max(0, x - mean(x) - cut *
// std(x)).
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::rms_norm;
using layer_in = operands::layer_norm;
using match_in = operands::match_rms;
using top_in = operands::statistical_top;

// The weight of rms_norm has a value for each column of a row or of a group. y may alias x or residual.
struct Params {
    float eps;
    int group;
    bool repeat;  // the weight has one group of values
};

// Checks x and y, and reads the attributes of a norm whose operand x has index `x`.
void prepare_norm(Launch& l, const Attrs& attrs, size_t x) {
    const int cols = l.in[x].cols;
    require_rows(l, l.in[x], "x", RowFormat::f32, cols);
    require_output(l, l.out[0], "y", cols);
    Params& p = l.as<Params>();
    p = {static_cast<float>(attrs.get("eps")), static_cast<int>(attrs.get("group", cols)), false};
    require(l, p.group > 0 && cols % p.group == 0, "group must divide the columns");
}

void prepare(Launch& l, const Attrs& attrs) {
    require_operands(l, in::n_inputs, 1);
    prepare_norm(l, attrs, in::x);
    const int cols = l.in[in::x].cols;
    Params& p = l.as<Params>();
    p.repeat = l.in[in::weight].tensor && l.in[in::weight].tensor->cols == p.group;
    if (l.in[in::weight]) require_vector(l, l.in[in::weight], "weight", p.repeat ? p.group : cols);
    if (l.in[in::residual]) {
        require_rows(l, l.in[in::residual], "residual", RowFormat::f32, cols);
        require(l, l.out[0].format == RowFormat::f32, "a residual needs an f32 output");
    }
}

int chunks(const Launch& l, const Batch& batch, int) {
    return Grid(l.rows(batch), l.in[in::x].cols, true).chunks();
}

void run(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const Operand &input = l.in[in::x], &residual = l.in[in::residual], &out = l.out[0];
    const float* weight = l.in[in::weight] ? l.in[in::weight].tensor->vector() : nullptr;
    Grid(l.rows(batch), input.cols, true).each(chunk, [&](int r, int, int cols) {
        const float* x = input.row(r);
        const float* add = residual ? residual.row(r) : nullptr;
        float* y = out.format == RowFormat::f32 ? out.row(r) : scratch.get(static_cast<size_t>(cols));
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
        if (out.format != RowFormat::f32) quantize_row(y, cols, out.format, out.row<std::byte>(r));
    });
}

void prepare_layer(Launch& l, const Attrs& attrs) {
    require_operands(l, layer_in::n_inputs, 1);
    prepare_norm(l, attrs, layer_in::x);
    const int cols = l.in[layer_in::x].cols;
    if (l.in[layer_in::weight]) require_vector(l, l.in[layer_in::weight], "weight", cols);
    if (l.in[layer_in::bias]) require_vector(l, l.in[layer_in::bias], "bias", cols);
}

int layer_chunks(const Launch& l, const Batch& batch, int) {
    return Grid(l.rows(batch), l.in[layer_in::x].cols, true).chunks();
}

void run_layer(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params p = l.as<Params>();
    const Operand &input = l.in[layer_in::x], &out = l.out[0];
    const float* weight = l.in[layer_in::weight] ? l.in[layer_in::weight].tensor->vector() : nullptr;
    const float* bias = l.in[layer_in::bias] ? l.in[layer_in::bias].tensor->vector() : nullptr;
    Grid(l.rows(batch), input.cols, true).each(chunk, [&](int r, int, int cols) {
        const float* x = input.row(r);
        float* y = out.format == RowFormat::f32 ? out.row(r) : scratch.get(static_cast<size_t>(cols));
        for (int g = 0; g < cols; g += p.group) {
            const F32x16 mean = F32x16::set1(sum_of(x + g, p.group) / static_cast<float>(p.group));
            for_lanes(0, p.group,
                      [&](int i, auto lanes) { store(load(x + g + i, lanes) - mean, y + g + i, lanes); });
            const F32x16 factor = F32x16::set1(inverse_rms(y + g, p.group, p.eps));
            for_lanes(0, p.group, [&](int i, auto lanes) {
                F32x16 v = load(y + g + i, lanes) * factor;
                if (weight) v = v * load(weight + g + i, lanes);
                if (bias) v = v + load(bias + g + i, lanes);
                store(v, y + g + i, lanes);
            });
        }
        if (out.format != RowFormat::f32) quantize_row(y, cols, out.format, out.row<std::byte>(r));
    });
}

void prepare_match(Launch& l, const Attrs& attrs) {
    require_operands(l, match_in::n_inputs, 1);
    Params& p = l.as<Params>();
    const int cols = l.out[0].cols;
    p = {static_cast<float>(attrs.get("eps")), l.in[match_in::like].cols, false};
    require(l, p.group > 0 && cols % p.group == 0, "runs must divide the columns");
    require_rows(l, l.in[match_in::x], "x", RowFormat::f32, cols);
    require_rows(l, l.in[match_in::like], "like", RowFormat::f32, p.group);
    require_rows(l, l.out[0], "y", RowFormat::f32, cols);
}

int whole_row_chunks(const Launch& l, const Batch& batch, int) {
    return Grid(l.rows(batch), l.out[0].cols, true).chunks();
}

void run_match(const Launch& l, const Batch& batch, int chunk, Scratch&) {
    const Params p = l.as<Params>();
    const auto n = static_cast<float>(p.group);
    Grid(l.rows(batch), l.out[0].cols, true).each(chunk, [&](int r, int, int cols) {
        const float *x = l.in[match_in::x].row(r), *like = l.in[match_in::like].row(r);
        float* y = l.out[0].row(r);
        const float target = sum_squares(like, p.group) / n;
        for (int g = 0; g < cols; g += p.group) {
            const float mean = std::max(sum_squares(x + g, p.group) / n, p.eps);
            const F32x16 factor = F32x16::set1(std::sqrt(target / mean));
            for_lanes(0, p.group,
                      [&](int i, auto lanes) { store(load(x + g + i, lanes) * factor, y + g + i, lanes); });
        }
    });
}

void prepare_top(Launch& l, const Attrs& attrs) {
    require_operands(l, top_in::n_inputs, 1);
    require_rows(l, l.in[top_in::x], "x", RowFormat::f32, l.out[0].cols);
    require_rows(l, l.out[0], "y", RowFormat::f32, l.out[0].cols);
    l.as<float>() = static_cast<float>(attrs.get("cut"));
}

void run_top(const Launch& l, const Batch& batch, int chunk, Scratch&) {
    const float cut = l.as<float>();
    Grid(l.rows(batch), l.out[0].cols, true).each(chunk, [&](int r, int, int cols) {
        const float* x = l.in[top_in::x].row(r);
        float* y = l.out[0].row(r);
        const auto n = static_cast<float>(cols);
        const F32x16 mean = F32x16::set1(sum_of(x, cols) / n);
        for_lanes(0, cols, [&](int i, auto lanes) { store(load(x + i, lanes) - mean, y + i, lanes); });
        const F32x16 limit = F32x16::set1(cut * std::sqrt(sum_squares(y, cols) / n));
        for_lanes(0, cols, [&](int i, auto lanes) {
            store(max(load(y + i, lanes) - limit, F32x16::zero()), y + i, lanes);
        });
    });
}

}  // namespace

const Kernel rms_norm_kernel{"rms_norm", prepare, chunks, run};
const Kernel layer_norm_kernel{"layer_norm", prepare_layer, layer_chunks, run_layer};
const Kernel match_rms_kernel{"match_rms", prepare_match, whole_row_chunks, run_match};
const Kernel statistical_top_kernel{"statistical_top", prepare_top, whole_row_chunks, run_top};

}  // namespace zinc::ZINC_LEVEL
