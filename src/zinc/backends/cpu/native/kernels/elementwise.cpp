// add, scale, softcap: one pass over rows of f32. select_rows: copies rows.
#include <cstring>

#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using add_in = operands::add;
using scale_in = operands::scale;
using softcap_in = operands::softcap;
using select_in = operands::select_rows;

Grid grid(const Launch& l, const Batch& batch) { return Grid(l.rows(batch), l.out[0].cols, false); }

int chunks(const Launch& l, const Batch& batch, int) { return grid(l, batch).chunks(); }

// Requires f32 rows of the same width for every input and the output.
void require_floats(const Launch& l, size_t n_in) {
    require_operands(l, n_in, 1);
    for (const Operand& o : l.in) require_rows(l, o, "each input", RowFormat::f32, l.out[0].cols);
    require_rows(l, l.out[0], "the output", RowFormat::f32, l.out[0].cols);
}

// y = a + b
void prepare_add(Launch& l, const Attrs&) { require_floats(l, add_in::n_inputs); }

void run_add(const Launch& l, const Batch& batch, int chunk, Scratch&) {
    grid(l, batch).each(chunk, [&](int r, int first, int last) {
        const float *a = l.in[add_in::a].row(r), *b = l.in[add_in::b].row(r);
        float* y = l.out[0].row(r);
        for_lanes(first, last, [&](int i, auto n) { store(load(a + i, n) + load(b + i, n), y + i, n); });
    });
}

// y = x * factor
void prepare_scale(Launch& l, const Attrs& attrs) {
    require_floats(l, scale_in::n_inputs);
    l.as<float>() = static_cast<float>(attrs.get("factor"));
}

void run_scale(const Launch& l, const Batch& batch, int chunk, Scratch&) {
    const F32x16 factor = F32x16::set1(l.as<float>());
    grid(l, batch).each(chunk, [&](int r, int first, int last) {
        const float* x = l.in[scale_in::x].row(r);
        float* y = l.out[0].row(r);
        for_lanes(first, last, [&](int i, auto n) { store(load(x + i, n) * factor, y + i, n); });
    });
}

// y = cap * tanh(x / cap)
void prepare_softcap(Launch& l, const Attrs& attrs) {
    require_floats(l, softcap_in::n_inputs);
    l.as<float>() = static_cast<float>(attrs.get("cap"));
    require(l, l.as<float>() > 0, "cap must be positive");
}

void run_softcap(const Launch& l, const Batch& batch, int chunk, Scratch&) {
    const F32x16 cap = F32x16::set1(l.as<float>()), inverse = F32x16::set1(1.0f / l.as<float>());
    grid(l, batch).each(chunk, [&](int r, int first, int last) {
        const float* x = l.in[softcap_in::x].row(r);
        float* y = l.out[0].row(r);
        for_lanes(first, last, [&](int i, auto n) { store(tanh(load(x + i, n) * inverse) * cap, y + i, n); });
    });
}

// y[r] = x[output_rows[r]], in the same row format
void prepare_select_rows(Launch& l, const Attrs&) {
    require_operands(l, select_in::n_inputs, 1);
    require_rows(l, l.in[select_in::x], "x", l.out[0].format, l.out[0].cols);
    require_output(l, l.out[0], "y", l.in[select_in::x].cols);
    require(l, l.dim == Dim::outputs, "must have one row for each output");
}

int select_chunks(const Launch& l, const Batch& batch, int) {
    return Grid(l.rows(batch), l.out[0].cols, true).chunks();
}

void run_select_rows(const Launch& l, const Batch& batch, int chunk, Scratch&) {
    const Operand &x = l.in[select_in::x], &y = l.out[0];
    const auto bytes =
        static_cast<size_t>(y.format == RowFormat::f32 ? int64_t{y.cols} * 4 : row_bytes(y.format, y.cols));
    Grid(l.rows(batch), y.cols, true).each(chunk, [&](int r, int, int) {
        std::memcpy(y.row<std::byte>(r), x.row<std::byte>(batch.output_rows[r]), bytes);
    });
}

}  // namespace

const Kernel add_kernel{"add", prepare_add, chunks, run_add};
const Kernel scale_kernel{"scale", prepare_scale, chunks, run_scale};
const Kernel softcap_kernel{"softcap", prepare_softcap, chunks, run_softcap};
const Kernel select_rows_kernel{"select_rows", prepare_select_rows, select_chunks, run_select_rows};

}  // namespace zinc::ZINC_LEVEL
