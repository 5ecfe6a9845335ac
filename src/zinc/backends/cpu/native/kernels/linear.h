// Division of matrix products into chunks: units of 32 weight rows x panels of rows of x.
#pragma once

#include <algorithm>

#include "check.h"
#include "weights.h"

namespace zinc::ZINC_LEVEL {

struct LinearGrid {
    int units, unit_step, n_unit_chunks;
    int rows, row_step, n_panels;

    // Decode: several chunks of some tens of KiB of weights for each thread, so that other threads take over
    // the share of a late thread. Prefill: the same number of chunks; rows are split only if there are too
    // few units.
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

    // Calls f(unit, first row, number of rows) for every unit of a chunk.
    template <class F>
    void each(int chunk, F&& f) const {
        const int first = chunk % n_unit_chunks * unit_step, row = chunk / n_unit_chunks * row_step;
        const int n = std::min(row_step, rows - row);
        for (int unit = first; n > 0 && unit < std::min(units, first + unit_step); ++unit) f(unit, row, n);
    }
};

// Requires a packed matrix in a format of this level or of a level that shares its kernels.
inline void require_packed(const Launch& l, const Operand& w, const char* name) {
    require(l, w.tensor && w.tensor->format, std::string(name) + " must be a packed matrix");
    const WeightFormat* format = w.tensor->format;
    bool ours = contains(kFormats, format);
#if defined(ZINC_HAS_BF16)
    ours = ours || contains(kBf16Formats, format);
#endif
#if defined(ZINC_HAS_AMX)
    ours = ours || contains(kAmxFormats, format);
#endif
    require(l, ours, std::string(name) + " was packed for another SIMD level");
}

// Requires a packed matrix of one plane, and rows `x` that it can be multiplied with.
inline void require_weight(const Launch& l, const Operand& w, const Operand& x, const char* name) {
    require_packed(l, w, name);
    const PackedTensor& t = *w.tensor;
    require(l, t.planes == 1, std::string(name) + " has " + std::to_string(t.planes) + " planes, not 1");
    require_rows(l, x, "x", t.format->row_format, t.cols);
}

// Output of a product of n rows: [n][kOutStride] in the thread's scratch.
inline float* sums_of(Scratch& scratch, int n) { return scratch.get(static_cast<size_t>(n) * kOutStride); }

// The cache lines of `tiles` tiles of float rows from row `first` and column `col` on, for
// TileMatmul::upcoming.
inline TileMatmul::UpcomingRows upcoming(const Operand& x, int first, int64_t col, int tiles) {
    return {{reinterpret_cast<const std::byte*>(x.row(first) + col), x.stride}, tiles};
}

inline StridedRows rows_from(const Operand& x, int first) { return {x.row<std::byte>(first), x.stride}; }

inline int64_t tiles_of(const PackedTensor& t) { return (t.rows + kTileRows - 1) / kTileRows; }

}  // namespace zinc::ZINC_LEVEL
