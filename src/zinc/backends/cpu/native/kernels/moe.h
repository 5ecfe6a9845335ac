// What the products over experts share: the runs of slots of each expert, as group_experts left them.
//
// A slot is token * top_k + rank. `order` lists the slots by expert, `starts` where the run of each expert begins.
#pragma once

#include <algorithm>

#include "linear.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {

inline constexpr int kMaxRunRows = 128;  // rows of an expert that go through its weights at once

// A view of order and starts.
class Runs {
public:
    Runs(const Operand& order, const Operand& starts)
        : order_(order), starts_(starts.row(0)), top_k_(order.cols), n_experts_(starts.cols - 1) {}
    int first(int expert) const { return static_cast<int>(starts_[expert]); }
    int end(int expert) const { return first(expert + 1); }
    // The expert whose run has position `at`.
    int expert(int at) const {
        return static_cast<int>(std::upper_bound(starts_, starts_ + n_experts_ + 1, static_cast<float>(at)) - starts_) - 1;
    }
    int slot(int at) const { return static_cast<int>(order_.row(at / top_k_)[at % top_k_]); }

private:
    const Operand& order_;
    const float* starts_;
    int top_k_, n_experts_;
};

// order, starts and a weight of so many experts.
inline void require_runs(const Launch& l, const Operand& order, const Operand& starts, const Operand& weight) {
    require_rows(l, order, "order", Act::f32);
    require(l, weight.tensor && weight.tensor->format, "the experts must be packed matrices");
    require_rows(l, starts, "starts", Act::f32, weight.tensor->planes + 1);
}

// A flat vector with `cols` values of each expert.
inline void require_expert_vector(const Launch& l, const Operand& o, const char* name, const PackedTensor& w) {
    if (o) require_vector(l, o, name, w.planes * w.rows);
}

// Bytes from run to run in a row of `h`; a run is a row of its own unless it is floats (see Value.runs of the graph).
inline int64_t run_bytes(Act act, int64_t ff) { return act == Act::f32 ? ff * 4 : row_bytes(act, ff); }

inline void require_hidden_runs(const Launch& l, const Operand& h, int top_k, int64_t ff) {
    require_rows(l, h, "h", top_k * ff);
    require(l, h.stride >= top_k * run_bytes(h.act, ff), "the runs of h do not fit its rows");
}

}  // namespace zinc::ZINC_LEVEL
