// Helpers of the matrix products over experts: the run of slots of each expert, as group_experts sorted them,
// and the rows of a run that are multiplied with the expert's weights.
//
// A slot is token * top_k + rank. `order` lists the slots sorted by expert; `starts` says where the run of
// each expert begins.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "linear.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {

inline constexpr int kMaxRunRows = 128;  // most rows of an expert in one product

template <class T>
T* grow(Bytes& bytes, size_t count) {
    if (bytes.size < count * sizeof(T)) bytes = Bytes(count * sizeof(T) * 5 / 4);
    return reinterpret_cast<T*>(bytes.data);
}

// The runs of slots described by `order` and `starts`.
class Runs {
public:
    Runs(const Operand& order, const Operand& starts, int n_tokens)
        : order_(order),
          starts_(starts.row(0)),
          top_k_(order.cols),
          n_experts_(starts.cols - 1),
          n_slots_(n_tokens * order.cols) {}

    int first(int expert) const { return start(expert); }
    int end(int expert) const { return std::max(start(expert), start(expert + 1)); }
    // The expert whose run contains position `at` of the order.
    int expert(int at) const {
        const float* above = std::upper_bound(starts_ + 1, starts_ + n_experts_, static_cast<float>(at));
        return static_cast<int>(above - starts_) - 1;
    }
    int slot(int at) const {
        const int slot = static_cast<int>(order_.row(at / top_k_)[at % top_k_]);
        if (slot < 0 || slot >= n_slots_)
            throw std::out_of_range("order names a slot that the step does not have");
        return slot;
    }
    // Calls f(first position, count) for panels of nearly equal size that make up the run of an expert.
    template <class F>
    void panels(int expert, F&& f) const {
        const int from = first(expert), n = end(expert) - from, count = (n + kMaxRunRows - 1) / kMaxRunRows;
        for (int i = 0; i < count; ++i) f(from + n * i / count, n * (i + 1) / count - n * i / count);
    }

private:
    int start(int expert) const { return std::clamp(static_cast<int>(starts_[expert]), 0, n_slots_); }

    const Operand& order_;
    const float* starts_;
    int top_k_, n_experts_, n_slots_;
};

// Rows of a run in the thread's scratch: rows of x, the output of a product, and data that the op keeps for
// each.
struct RunRows {
    int n;
    StridedRows x;
    float* sums;     // [n][kOutStride]
    float* floats;   // n_floats of the constructor
    float* weights;  // [n]
    int* slots;      // [n]
    // `bytes` is the size of a row of x.
    RunRows(Scratch& scratch, int n_rows, int64_t bytes, size_t n_floats) : n(n_rows) {
        const auto rows = static_cast<size_t>(n_rows);
        n_floats = (n_floats + 15) / 16 * 16;
        const size_t gathered = rows > 1 ? rows * static_cast<size_t>(bytes) : 0;
        auto* at = scratch.get<std::byte>(gathered + rows * (kOutStride * 4 + 8) + n_floats * 4);
        x = {at, bytes};
        sums = reinterpret_cast<float*>(at + gathered);
        floats = sums + rows * kOutStride;
        weights = floats + n_floats;
        slots = reinterpret_cast<int*>(weights + rows);
        gathered_ = at;
    }
    // Sets row i of x. Products need rows at a constant distance, so several rows are copied; a single row is
    // not.
    void take(int i, const std::byte* row) {
        if (n == 1) {
            x.data = row;
        } else {
            x.data = gathered_;
            std::memcpy(gathered_ + i * x.stride, row, static_cast<size_t>(x.stride));
        }
    }

private:
    std::byte* gathered_;
};

// Arguments of the product of a run with tiles a and b (may be null). `next` and `next_b` are read after
// them.
inline TileMatmul product(const RunRows& rows, const std::byte* a, const std::byte* b, const std::byte* next,
                          const std::byte* next_b, int64_t cols) {
    return {{a, b}, b ? 2 : 1, cols, rows.x, rows.n, rows.sums, {next, next_b}};
}

// Prefetches the first 4 KiB of a stream of weights.
inline void prefetch_start(const std::byte* weights) {
    for (int i = 0; i < 4096; i += 64) __builtin_prefetch(weights + i);
}

// Requires packed weights, and `order` and `starts` for their number of experts.
inline void require_experts(const Launch& l, const Operand& w, const Operand& order, const Operand& starts,
                            const char* name) {
    require_packed(l, w, name);
    require_rows(l, order, "order", RowFormat::f32);
    require_rows(l, starts, "starts", RowFormat::f32, w.tensor->planes + 1);
}

// Requires, if present, a flat vector with a value for each row of each expert.
inline void require_expert_vector(const Launch& l, const Operand& o, const char* name,
                                  const PackedTensor& w) {
    if (o) require_vector(l, o, name, w.planes * w.rows);
}

// Bytes from run to run in a row of h. Quantised runs are laid out as rows of their own (Value.runs of the
// graph).
inline int64_t run_bytes(RowFormat format, int64_t ff) {
    return format == RowFormat::f32 ? ff * 4 : row_bytes(format, ff);
}

inline void require_runs_of(const Launch& l, const Operand& h, int top_k, int64_t ff) {
    require_rows(l, h, "h", top_k * ff);
    require(l, h.stride >= top_k * run_bytes(h.format, ff), "the runs of h do not fit its rows");
}

}  // namespace zinc::ZINC_LEVEL
