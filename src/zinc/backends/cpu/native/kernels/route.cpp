// route chooses the experts of each token; group_experts sorts the choices by expert.
//
// The result for a token depends on its own logits only. Of equal scores the first expert wins, as in the
// reference.
#include <algorithm>
#include <limits>
#include <numeric>

#include "math.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {
namespace {

using route_in = operands::route;
using group_in = operands::group_experts;

// ---- route: from logits [experts] to [ids | weights], 2 top_k columns

enum class Scoring : int { softmax = 0, sigmoid = 1, softmax_chosen = 2, sparse_mixer = 3 };
constexpr float kNearly = 0.02f;  // NEARLY of zinc.ops.moe
constexpr int kMaxGroupTop = 16;

struct Params {
    Scoring scoring;
    int n_experts, top_k, n_groups, top_groups, group_top;
    bool renormalise;
    float scale;
};

void prepare_route(Launch& l, const Attrs& attrs) {
    require_operands(l, route_in::n_inputs, 1);
    Params& p = l.as<Params>();
    p.n_experts = l.in[route_in::logits].cols;
    require_rows(l, l.in[route_in::logits], "logits", RowFormat::f32);
    p.scoring = static_cast<Scoring>(whole(l, attrs, "scoring", 0, 3));
    p.top_k = whole(l, attrs, "top_k", 1, p.n_experts);
    p.n_groups = whole(l, attrs, "n_groups", 1, p.n_experts);
    require(l, p.n_experts % p.n_groups == 0, "n_groups must divide the experts");
    const int group = p.n_experts / p.n_groups;
    p.top_groups = whole(l, attrs, "top_groups", 1, p.n_groups);
    p.group_top = whole(l, attrs, "group_top", 1, std::min(group, kMaxGroupTop));
    require(l, p.n_groups == 1 || p.top_k <= p.top_groups * group, "the chosen groups have too few experts");
    p.renormalise = attrs.get("renormalise") != 0;
    p.scale = static_cast<float>(attrs.get("scale"));
    if (l.in[route_in::bias]) require_vector(l, l.in[route_in::bias], "bias", p.n_experts);
    require_rows(l, l.out[0], "routes", RowFormat::f32, int64_t{2} * p.top_k);
}

Grid route_grid(const Launch& l, const Batch& batch) {
    return Grid(l.rows(batch), l.in[route_in::logits].cols * 8, true);
}

int route_chunks(const Launch& l, const Batch& batch, int) { return route_grid(l, batch).chunks(); }

// The `count` largest of the values added so far, largest first. Of equal values the first one added wins.
struct Best {
    int count, size = 0;
    float* values;
    int* ids;
    Best(int n, float* v, int* i) : count(n), values(v), ids(i) {}
    void add(float value, int id) {
        if (size == count && !(value > values[count - 1])) return;
        int at = size < count ? size++ : count - 1;
        for (; at > 0 && value > values[at - 1]; --at) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = value;
        ids[at] = id;
    }
};

// Stores y = exp(x - max x) and returns the sum.
float exponentials(const float* x, int n, float* y) {
    F32x16 top = F32x16::set1(x[0]), total = F32x16::zero();
    for_lanes(0, n, [&](int i, auto lanes) {
        const F32x16 v = load(x + i, lanes);
        top = max(top, lanes == 16 ? v : select_lanes(v, 0, lanes, top));
    });
    const F32x16 most = F32x16::set1(hmax(top));
    for_lanes(0, n, [&](int i, auto lanes) {
        const F32x16 e = exp(load(x + i, lanes) - most);
        store(e, y + i, lanes);
        total = total + (lanes == 16 ? e : select_lanes(e, 0, lanes, F32x16::zero()));
    });
    return sum(total);
}

// Weight of the chosen expert ids[rank] among those whose score nearly equals its own. The experts that rank
// before it are left out.
float weight_among_near(const float* scores, int n, const int* ids, int rank) {
    const float best = scores[ids[rank]];
    float total = 0;
    for (int e = 0; e < n; ++e) {
        const bool is_left = std::find(ids, ids + rank, e) == ids + rank;
        if (is_left && best - scores[e] <= kNearly * std::max(std::fabs(scores[e]), best))
            total += std::exp(scores[e] - best);
    }
    return 1.0f / total;
}

void run_route(const Launch& l, const Batch& batch, int chunk, Scratch& scratch) {
    const Params& p = l.as<Params>();
    const auto n = static_cast<size_t>(p.n_experts), k = static_cast<size_t>(p.top_k);
    float* scores = scratch.get(2 * n + 2 * (k + static_cast<size_t>(p.n_groups)));
    float *choice = scores + n, *chosen = choice + n, *totals = chosen + k;
    int* ids = reinterpret_cast<int*>(totals + p.n_groups);
    int* groups = ids + k;
    const float* bias = l.in[route_in::bias] ? l.in[route_in::bias].tensor->vector() : nullptr;
    const int group = p.n_experts / p.n_groups;

    route_grid(l, batch).each(chunk, [&](int t, int, int) {
        const float* logits = l.in[route_in::logits].row(t);
        if (p.scoring == Scoring::softmax) {
            const F32x16 inverse = F32x16::set1(1.0f / exponentials(logits, p.n_experts, scores));
            for_lanes(0, p.n_experts, [&](int i, auto lanes) {
                store(load(scores + i, lanes) * inverse, scores + i, lanes);
            });
        } else {
            const bool sigmoids = p.scoring == Scoring::sigmoid;
            for_lanes(0, p.n_experts, [&](int i, auto lanes) {
                const F32x16 x = load(logits + i, lanes);
                store(sigmoids ? sigmoid(x) : x, scores + i, lanes);
            });
        }
        // Softmax keeps the order of logits, and logits cannot underflow.
        const float* by = p.scoring == Scoring::softmax && !bias && p.n_groups == 1 ? logits : scores;
        if (bias) {
            for_lanes(0, p.n_experts, [&](int i, auto lanes) {
                store(load(scores + i, lanes) + load(bias + i, lanes), choice + i, lanes);
            });
            by = choice;
        }
        Best best(p.top_k, chosen, ids);
        if (p.n_groups == 1) {
            for (int e = 0; e < p.n_experts; ++e) best.add(by[e], e);
        } else {
            Best best_groups(p.top_groups, totals, groups);
            for (int g = 0; g < p.n_groups; ++g) {
                float values[kMaxGroupTop];
                int unused[kMaxGroupTop];
                Best top(p.group_top, values, unused);
                for (int e = 0; e < group; ++e) top.add(by[g * group + e], e);
                best_groups.add(std::accumulate(values, values + p.group_top, 0.0f), g);
            }
            std::sort(groups, groups + p.top_groups);  // so that of equal experts the first wins
            for (int i = 0; i < p.top_groups; ++i)
                for (int e = groups[i] * group; e < (groups[i] + 1) * group; ++e) best.add(by[e], e);
        }

        float *out = l.out[0].row(t), *weights = out + p.top_k;
        for (int i = 0; i < p.top_k; ++i) {
            out[i] = static_cast<float>(ids[i]);
            weights[i] = p.scoring == Scoring::sparse_mixer ? weight_among_near(scores, p.n_experts, ids, i)
                                                            : scores[ids[i]];
        }
        float factor = p.scale;
        if (p.scoring == Scoring::softmax_chosen) {
            factor /= exponentials(weights, p.top_k, weights);
        } else if (p.renormalise) {
            factor /= std::accumulate(weights, weights + p.top_k, 0.0f) + 1e-20f;
        }
        for (int i = 0; i < p.top_k; ++i) weights[i] *= factor;
    });
}

// ---- group_experts: from routes to order [top_k] and starts [experts + 1], which is one row

void prepare_group(Launch& l, const Attrs& attrs) {
    require_operands(l, group_in::n_inputs, 2);
    const int n_experts = whole(l, attrs, "n_experts", 1, 1 << 20);
    require(l, l.in[group_in::routes].cols % 2 == 0, "routes need a weight for each id");
    require_rows(l, l.in[group_in::routes], "routes", RowFormat::f32);
    require_rows(l, l.out[0], "order", RowFormat::f32, l.in[group_in::routes].cols / 2);
    require_rows(l, l.out[1], "starts", RowFormat::f32, n_experts + 1);
}

int group_chunks(const Launch& l, const Batch& batch, int) {
    // Slots are stored as floats, which are exact up to 2^24.
    require(l, int64_t{l.rows(batch)} * l.out[0].cols <= 1 << 24, "too many tokens at once");
    return 1;
}

void run_group(const Launch& l, const Batch& batch, int, Scratch& scratch) {
    const int top_k = l.in[group_in::routes].cols / 2, n_experts = l.out[1].cols - 1,
              n_tokens = l.rows(batch);
    int* next = scratch.get<int>(static_cast<size_t>(n_experts) + 1);
    std::fill_n(next, n_experts + 1, 0);
    for (int t = 0; t < n_tokens; ++t) {
        const float* ids = l.in[group_in::routes].row(t);
        for (int i = 0; i < top_k; ++i) {
            if (!(ids[i] >= 0 && ids[i] < static_cast<float>(n_experts)))
                throw std::invalid_argument(
                    "group_experts: a token was sent to an expert that does not exist");
            ++next[static_cast<int>(ids[i]) + 1];
        }
    }
    float* starts = l.out[1].row(0);
    for (int e = 0; e <= n_experts; ++e) {
        if (e > 0) next[e] += next[e - 1];
        starts[e] = static_cast<float>(next[e]);
    }
    for (int t = 0; t < n_tokens; ++t) {
        const float* ids = l.in[group_in::routes].row(t);
        for (int i = 0; i < top_k; ++i) {
            const int at = next[static_cast<int>(ids[i])]++;
            l.out[0].row(at / top_k)[at % top_k] = static_cast<float>(t * top_k + i);
        }
    }
}

}  // namespace

const Kernel route_kernel{"route", prepare_route, route_chunks, run_route};
const Kernel group_experts_kernel{"group_experts", prepare_group, group_chunks, run_group};

}  // namespace zinc::ZINC_LEVEL
