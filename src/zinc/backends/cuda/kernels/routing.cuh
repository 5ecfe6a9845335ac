// The choice of the experts of a token from its router logits, by one warp. Each lane keeps the keys of
// every SUBGROUP-th expert in registers. The best expert is selected TOP_K times.

#pragma once

#include "activation.cuh"
#include "prelude.cuh"

#define SOFTMAX 0
#define SIGMOID 1
#define SOFTMAX_CHOSEN 2
#define SPARSE_MIXER 3
#define NEARLY 0.02f // relative difference of scores up to which SPARSE_MIXER compares experts
#define EACH ((EXPERTS + SUBGROUP - 1) / SUBGROUP)
#define GROUP_SIZE (EXPERTS / GROUPS)

/// Converts a float to an integer with the same order. 0 is below all floats.
DEVICE uint orderedBits(float x)
{
    uint bits = asuint(x);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

SHARED uint ids[TOP_K];
SHARED float weights[TOP_K];

#if GROUPS > 1
SHARED uint shared[EXPERTS];
SHARED float totals[GROUPS];

DEVICE float fromOrderedBits(uint key)
{
    return asfloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

/// Returns the sum of the GROUP_TOP best keys of a group of experts.
DEVICE float totalOf(uint group)
{
    float total = 0;
    uint bound = 0xffffffffu, bound_at = EXPERTS; // the expert taken last
    for (uint n = 0; n < GROUP_TOP; n++)
    {
        uint best = 0, best_at = EXPERTS;
        for (uint e = group * GROUP_SIZE; e < (group + 1) * GROUP_SIZE; e++)
        {
            bool taken = bound_at < EXPERTS
                && (shared[e] > bound || (shared[e] == bound && e <= bound_at));
            if (!taken && shared[e] > best)
            {
                best = shared[e];
                best_at = e;
            }
        }
        total += fromOrderedBits(best);
        bound = best;
        bound_at = best_at;
    }
    return total;
}
#endif

/// Writes the chosen experts and their weights to `y`. If `bias` is not null, it is added to the scores
/// for the choice, but not to the weights.
DEVICE void chooseExperts(const float* logits, const float* bias, float scale, float* y, uint lane)
{
    float scores[EACH];
    float top = -1e30f;
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint e = i * SUBGROUP + lane;
        scores[i] = e < EXPERTS ? logits[e] : -1e30f;
        top = max(top, scores[i]);
    }
#if SCORING == SOFTMAX
    top = warpMax(top);
    float sum = 0;
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        scores[i] = exp(scores[i] - top);
        if (i * SUBGROUP + lane < EXPERTS) sum += scores[i];
    }
    sum = warpSum(sum);
    UNROLL for (uint i = 0; i < EACH; i++) scores[i] /= sum;
#elif SCORING == SIGMOID
    UNROLL for (uint i = 0; i < EACH; i++) scores[i] = sigmoid(scores[i]);
#endif

    uint keys[EACH];
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint e = i * SUBGROUP + lane;
        float choice = scores[i];
        if (bias != nullptr && e < EXPERTS) choice += bias[e];
        keys[i] = e < EXPERTS ? orderedBits(choice) : 0;
    }
#if GROUPS > 1
    UNROLL for (uint i = 0; i < EACH; i++)
        if (i * SUBGROUP + lane < EXPERTS) shared[i * SUBGROUP + lane] = keys[i];
    __syncwarp();
    for (uint g = lane; g < GROUPS; g += SUBGROUP) totals[g] = totalOf(g);
    __syncwarp();
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint own = min((i * SUBGROUP + lane) / GROUP_SIZE, GROUPS - 1), better = 0;
        for (uint g = 0; g < GROUPS; g++)
            if (totals[g] > totals[own] || (totals[g] == totals[own] && g < own)) better++;
        if (better >= TOP_GROUPS) keys[i] = 0;
    }
#endif

    for (uint k = 0; k < TOP_K; k++)
    {
        uint best = keys[0];
        UNROLL for (uint i = 1; i < EACH; i++) best = max(best, keys[i]);
        best = warpMax(best);
        uint id = 0xffffffffu;
        UNROLL for (uint i = 0; i < EACH; i++)
            if (keys[i] == best) id = min(id, i * SUBGROUP + lane);
        id = warpMin(id);
#if SCORING == SPARSE_MIXER
        float score = -1e30f, near = 0;
        UNROLL for (uint i = 0; i < EACH; i++)
            if (id == i * SUBGROUP + lane) score = scores[i];
        score = warpMax(score);
        UNROLL for (uint i = 0; i < EACH; i++)
            if (keys[i] != 0 && score - scores[i] <= NEARLY * max(abs(scores[i]), score))
                near += exp(scores[i] - score);
        near = warpSum(near);
#endif
        UNROLL for (uint i = 0; i < EACH; i++)
            if (id == i * SUBGROUP + lane)
            {
                keys[i] = 0;
                ids[k] = id;
#if SCORING == SPARSE_MIXER
                weights[k] = 1.0f / near;
#else
                weights[k] = scores[i];
#endif
            }
    }
    __syncwarp();

    float total = 0;
#if SCORING == SOFTMAX_CHOSEN
    for (uint k = 0; k < TOP_K; k++) total += exp(weights[k] - weights[0]);
    scale /= total;
#elif RENORMALISE
    for (uint k = 0; k < TOP_K; k++) total += weights[k];
    scale /= total + 1e-20f;
#endif
    for (uint k = lane; k < TOP_K; k += SUBGROUP)
    {
        y[k] = float(ids[k]);
#if SCORING == SOFTMAX_CHOSEN
        y[TOP_K + k] = exp(weights[k] - weights[0]) * scale;
#else
        y[TOP_K + k] = weights[k] * scale;
#endif
    }
}

/// Returns the number of the token's slots whose expert is below `expert`.
DEVICE uint chosenBelow(uint expert)
{
    uint n = 0;
    for (uint k = 0; k < TOP_K; k++) n += ids[k] < expert ? 1 : 0;
    return n;
}

/// Sorts the slots that chooseExperts has filled by expert, for a step of one token.
DEVICE void sortSlots(float* order, float* starts, uint lane)
{
    for (uint e = lane; e <= EXPERTS; e += SUBGROUP) starts[e] = float(chosenBelow(e));
    for (uint k = lane; k < TOP_K; k += SUBGROUP) order[chosenBelow(ids[k])] = float(k);
}
