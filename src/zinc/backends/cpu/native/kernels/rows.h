// Helpers of kernels over rows of floats: division of rows into chunks, loops over lanes with a masked tail,
// and the sums for norms.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "../q8row.h"
#include "../simd.h"
#include "check.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {

// Requires output rows that the kernel stores as f32 or quantises.
inline void require_output(const Launch& l, const Operand& o, const char* name, int cols) {
    require_rows(l, o, name, cols);
    require(
        l, has_whole_blocks(o.format, cols),
        std::string(name) + " of " + std::to_string(cols) + " columns cannot be quantised in groups of 32");
}

// Returns an attribute, which must be a whole number in [low, high].
inline int whole(const Launch& l, const Attrs& attrs, const char* name, int low, int high) {
    const double value = attrs.get(name);
    require(l, value == std::floor(value) && value >= low && value <= high,
            std::string(name) + " must be a whole number from " + std::to_string(low) + " to " +
                std::to_string(high));
    return static_cast<int>(value);
}

// Division of rows x columns into chunks of about kChunk elements: several short rows or a part of a long
// row.
struct Grid {
    static constexpr int kChunk = 8192;
    int rows, cols, row_step, col_step;

    Grid(int n_rows, int n_cols, bool whole_rows)
        : rows(n_rows),
          cols(n_cols),
          row_step(std::max(1, kChunk / std::max(1, n_cols))),
          col_step(whole_rows ? n_cols : std::min(n_cols, kChunk)) {}
    int pieces() const { return (cols + col_step - 1) / col_step; }
    int chunks() const { return (rows + row_step - 1) / row_step * pieces(); }

    // Calls f(row, first column, last column) for each row of the chunk.
    template <class F>
    void each(int chunk, F&& f) const {
        const int first = chunk / pieces() * row_step, c = chunk % pieces() * col_step;
        for (int r = first; r < std::min(rows, first + row_step); ++r) f(r, c, std::min(cols, c + col_step));
    }
};

using AllLanes = std::integral_constant<int, 16>;

inline F32x16 load(const float* p, AllLanes) { return F32x16::load(p); }
inline F32x16 load(const float* p, int n) { return F32x16::load_n(p, n); }
inline void store(F32x16 a, float* p, AllLanes) { a.store(p); }
inline void store(F32x16 a, float* p, int n) { a.store_n(p, n); }

// Calls f(i, AllLanes) for each run of 16 elements in [first, last), then f(i, n) for the n elements left.
template <class F>
inline void for_lanes(int first, int last, F&& f) {
    int i = first;
    for (; i + 16 <= last; i += 16) f(i, AllLanes{});
    if (i < last) f(i, last - i);
}

// Sum of x[i]^2. Four running sums hide the latency of fma; they are added in a fixed order.
inline float sum_squares(const float* x, int n) {
    F32x16 s[4] = {F32x16::zero(), F32x16::zero(), F32x16::zero(), F32x16::zero()};
    int i = 0;
    for (; i + 64 <= n; i += 64) {
        for (int j = 0; j < 4; ++j) {
            const F32x16 v = F32x16::load(x + i + 16 * j);
            s[j] = fma(v, v, s[j]);
        }
    }
    for_lanes(i, n, [&](int j, auto lanes) {
        const F32x16 v = load(x + j, lanes);
        s[0] = fma(v, v, s[0]);
    });
    return sum((s[0] + s[1]) + (s[2] + s[3]));
}

// Sum of x[i], in a fixed order.
inline float sum_of(const float* x, int n) {
    F32x16 s[4] = {F32x16::zero(), F32x16::zero(), F32x16::zero(), F32x16::zero()};
    int i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; ++j) s[j] = s[j] + F32x16::load(x + i + 16 * j);
    for_lanes(i, n, [&](int j, auto lanes) { s[0] = s[0] + load(x + j, lanes); });
    return sum((s[0] + s[1]) + (s[2] + s[3]));
}

// 1 / rms(x), the factor of an RMS norm (Zhang and Sennrich 2019).
inline float inverse_rms(const float* x, int n, float eps) {
    return 1.0f / std::sqrt(sum_squares(x, n) / static_cast<float>(n) + eps);
}

}  // namespace zinc::ZINC_LEVEL
