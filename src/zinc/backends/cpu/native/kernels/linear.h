// How the launches of matrix products fall into chunks: units of 32 weight rows x panels of activation rows.
#pragma once

#include <algorithm>

#include "check.h"
#include "weights.h"

namespace zinc::ZINC_LEVEL {

struct LinearGrid {
    int units, unit_step, n_unit_chunks;
    int rows, row_step, n_panels;

    // Decode: chunks of some tens of KiB of weights, several a thread, so that a thread that is late or
    // disturbed leaves its share to the others. Prefill: the same number of chunks; rows are split only where
    // units do not suffice.
    LinearGrid(int n_units, int n_rows, int64_t unit_bytes, int panel_rows, int n_threads)
        : units(n_units), rows(n_rows) {
        const int wanted = n_threads == 1 ? 1 : n_threads * 8;
        const int smallest =
            n_rows > 4 ? 1 : static_cast<int>(std::max<int64_t>(1, 24576 / std::max<int64_t>(1, unit_bytes)));
        unit_step = std::max({1, smallest, units / wanted});
        n_unit_chunks = (units + unit_step - 1) / unit_step;
        n_panels = (rows + panel_rows - 1) / panel_rows;
        if (n_threads > 1 && n_unit_chunks * n_panels < n_threads * 3 && rows >= 48)
            n_panels = std::max(n_panels, std::min(rows / 24, n_threads * 3 / n_unit_chunks));
        row_step = n_panels ? (rows + n_panels - 1) / n_panels : 0;
    }
    int chunks() const { return n_unit_chunks * n_panels; }

    // f(unit, first row, number of rows) for every unit of a chunk.
    template <class F>
    void each(int chunk, F&& f) const {
        const int first = chunk % n_unit_chunks * unit_step, row = chunk / n_unit_chunks * row_step;
        const int n = std::min(row_step, rows - row);
        for (int unit = first; n > 0 && unit < std::min(units, first + unit_step); ++unit) f(unit, row, n);
    }
};

// Packed matrices of this level, or of one that shares its kernels.
inline void require_packed(const Launch& l, const Operand& w, const char* name) {
    require(l, w.tensor && w.tensor->format, std::string(name) + " must be a packed matrix");
    bool ours = false;
    for (auto f = kFormats; *f; ++f) ours |= *f == w.tensor->format;
#if defined(ZINC_HAS_BF16)
    ours |= w.tensor->format == &bf16_pairs_format;
#endif
#if defined(ZINC_HAS_AMX)
    for (auto f = kAmxFormats; *f; ++f) ours |= *f == w.tensor->format;
#endif
    require(l, ours, std::string(name) + " was packed for another SIMD level");
}

// A packed matrix of this level over rows of `x`.
inline void require_weight(const Launch& l, const Operand& w, const Operand& x, const char* name) {
    require_packed(l, w, name);
    const PackedTensor& t = *w.tensor;
    require(l, t.planes == 1, std::string(name) + " has " + std::to_string(t.planes) + " planes, not 1");
    require_rows(l, x, "x", t.format->activation, t.cols);
}

// The sums of a product of n rows, [n][kOutStride] in the thread's scratch.
inline float* sums_of(Scratch& scratch, int n) { return scratch.get(static_cast<size_t>(n) * kOutStride); }

// Rows of floats from `first` on, `tiles` tiles from column `col` on, for TileMatmul::soon.
inline TileMatmul::Soon soon(const Operand& x, int first, int64_t col, int tiles) {
    return {{reinterpret_cast<const std::byte*>(x.row(first) + col), x.stride}, tiles};
}

inline ActRows rows_from(const Operand& x, int first) { return {x.row<std::byte>(first), x.stride}; }

inline int64_t tiles_of(const PackedTensor& t) { return (t.rows + kTileRows - 1) / kTileRows; }

}  // namespace zinc::ZINC_LEVEL
