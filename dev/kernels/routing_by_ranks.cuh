// Another `chooseExperts` for routing.cuh (cuda.md, "Choice of experts by ranks").
//
// The choice of the experts of a token from its router logits, by a block of THREADS threads. An
// expert is chosen if its rank is below TOP_K. The rank is the number of experts with a higher score, or
// with an equal score and a lower number. Ranks among many experts would take a comparison of each pair,
// so they are first ranked within segments, and the best KEPT of each segment are ranked again:
//
// ```
//   keys   | segment 0     | segment 1     | ... | candidates of 0 | of 1 | ... |
//          | PLACES ordered scores, padded to fours                | CANDIDATES |
// ```

#pragma once

#include "activation.cuh"
#include "prelude.cuh"

#define SOFTMAX 0
#define SIGMOID 1
#define SOFTMAX_CHOSEN 2
#define SPARSE_MIXER 3
#define NEARLY 0.02f // relative difference of scores up to which SPARSE_MIXER compares experts
#define NO_LOGIT -1e30f

#define ONE_SEGMENT (GROUPS <= 1 && EXPERTS <= 32)
#define SEGMENTS (GROUPS > 1 ? GROUPS : (EXPERTS + 31) / 32)
#define SEGMENT (GROUPS > 1 ? EXPERTS / GROUPS : EXPERTS < 32 ? EXPERTS : 32) // its experts
#define FOURS ((SEGMENT + 3) / 4) // uint4s of a segment's keys
#define PLACES (SEGMENTS * FOURS * 4)
#define EACH ((PLACES + THREADS - 1) / THREADS) // places per thread
#define WANTED (TOP_K > GROUP_TOP ? TOP_K : GROUP_TOP)
#define KEPT (WANTED < SEGMENT ? WANTED : SEGMENT)
#define CANDIDATES (ONE_SEGMENT ? 0 : SEGMENTS * KEPT)

#define PADDING 0 // key of a place without an expert
#define EXCLUDED 1 // key of an expert in a group that is not chosen

SHARED uint4 keys[PLACES / 4 + (CANDIDATES + 3) / 4];
SHARED float logits[EXPERTS];
#if !ONE_SEGMENT
SHARED uint candidates[CANDIDATES]; // expert of each candidate
#endif
SHARED uint ids[TOP_K];
SHARED float weights[TOP_K];

#if GROUPS > 1
SHARED float totals[GROUPS];

DEVICE float fromKey(uint key) { return asfloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }
#endif

/// Converts a float to an integer with the same order, above EXCLUDED.
DEVICE uint toKey(float x)
{
    uint bits = asuint(x);
    return max((bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u, EXCLUDED + 1);
}

DEVICE uint keyAt(uint place) { return keys[place / 4][place % 4]; }

/// Returns the expert whose key lies at `place`, EXPERTS or more for padding.
DEVICE uint expertAt(uint place)
{
    uint segment = place / (4 * FOURS), within = place % (4 * FOURS);
    return segment < SEGMENTS && within < SEGMENT ? segment * SEGMENT + within : EXPERTS;
}

/// Returns how many keys in `n` uint4s, from number `first` on, rank before the key at `place`, which is
/// one of them.
DEVICE uint rankOf(uint place, uint first, uint n)
{
    uint key = keyAt(place), own = place / 4, rank = 0;
    for (uint i = 0; i < n; i++)
    {
        uint4 four = keys[first + i];
        uint bound = first + i < own ? key - 1 : key; // before `place`, equal keys count
        UNROLL for (uint j = 0; j < 4; j++) rank += four[j] > bound ? 1 : 0;
    }
    uint4 four = keys[own];
    UNROLL for (uint j = 0; j < 4; j++) rank += j < place % 4 && four[j] == key ? 1 : 0;
    return rank;
}

/// Returns the score of a logit, given the largest logit and the sum of all exponentials for SOFTMAX.
DEVICE float scoreOf(float logit, float top, float sum)
{
#if SCORING == SOFTMAX
    return exp(logit - top) / sum;
#elif SCORING == SIGMOID
    return sigmoid(logit);
#else
    return logit;
#endif
}

#if SCORING == SPARSE_MIXER
/// Returns the softmax weight of an expert. The softmax is over the expert and those of lower rank whose
/// score differs by less than NEARLY.
DEVICE float weightAmongNear(uint expert)
{
    uint key = keyAt(expert); // there are no groups, so segments have no padding before the last one
    float score = logits[expert], near = 0;
    for (uint e = 0; e < EXPERTS; e++)
    {
        bool is_before = keyAt(e) > key || (keyAt(e) == key && e < expert);
        if (!is_before && score - logits[e] <= NEARLY * max(abs(logits[e]), score))
            near += exp(logits[e] - score);
    }
    return 1.0f / near;
}
#endif

/// Stores expert `id` as the one with a rank below TOP_K. top, sum: as for scoreOf.
DEVICE void choose(uint rank, uint id, float top, float sum)
{
    ids[rank] = id;
#if SCORING == SPARSE_MIXER
    weights[rank] = weightAmongNear(id);
#else
    weights[rank] = scoreOf(logits[id], top, sum);
#endif
}

/// Writes the chosen experts and their weights to `y`. own: the logits of the experts at places
/// i * THREADS + thread. If `bias` is not null, it is added to the scores for the choice, but not to the
/// weights.
DEVICE void chooseExperts(
    const float (&own)[EACH], const float* bias, float scale, float* y, uint thread)
{
    float top = NO_LOGIT, sum = 0;
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint e = expertAt(i * THREADS + thread);
        if (e < EXPERTS) logits[e] = own[i];
    }
#if SCORING == SOFTMAX
    __syncthreads();
    uint lane = thread % SUBGROUP;
    for (uint e = lane; e < EXPERTS; e += SUBGROUP) top = max(top, logits[e]);
    top = warpMax(top);
    for (uint e = lane; e < EXPERTS; e += SUBGROUP) sum += exp(logits[e] - top);
    sum = warpSum(sum);
#endif
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint place = i * THREADS + thread, e = expertAt(place), key = PADDING;
        if (e < EXPERTS)
        {
            float choice = scoreOf(own[i], top, sum);
            if (bias != nullptr) choice += bias[e];
            key = toKey(choice);
        }
        if (place < PLACES) keys[place / 4][place % 4] = key;
    }
    for (uint i = thread; i < (CANDIDATES + 3) / 4; i += THREADS) keys[PLACES / 4 + i] = PADDING;
    __syncthreads();

    UNROLL for (uint i = 0; i < EACH; i++)
    {
        uint place = i * THREADS + thread, segment = place / (4 * FOURS);
        if (expertAt(place) >= EXPERTS) continue;
        uint rank = rankOf(place, segment * FOURS, FOURS);
#if ONE_SEGMENT
        if (rank < TOP_K) choose(rank, expertAt(place), top, sum);
#else
        if (rank >= KEPT) continue;
        uint candidate = segment * KEPT + rank;
        candidates[candidate] = expertAt(place);
        keys[PLACES / 4 + candidate / 4][candidate % 4] = keyAt(place);
#endif
    }
    __syncthreads();

#if GROUPS > 1
    for (uint g = thread; g < GROUPS; g += THREADS)
    {
        float total = 0; // of the best GROUP_TOP experts
        for (uint n = 0; n < GROUP_TOP; n++) total += fromKey(keyAt(PLACES + g * KEPT + n));
        totals[g] = total;
    }
    __syncthreads();
    for (uint i = thread; i < CANDIDATES; i += THREADS)
    {
        uint own_group = i / KEPT, better = 0;
        for (uint g = 0; g < GROUPS; g++)
            if (totals[g] > totals[own_group] || (totals[g] == totals[own_group] && g < own_group))
                better++;
        if (better >= TOP_GROUPS) keys[PLACES / 4 + i / 4][i % 4] = EXCLUDED;
    }
    __syncthreads();
#endif

#if !ONE_SEGMENT
    // Candidates of equal score lie in the order of their experts.
    for (uint i = thread; i < CANDIDATES; i += THREADS)
    {
        if (keyAt(PLACES + i) == PADDING) continue;
        uint rank = rankOf(PLACES + i, PLACES / 4, (CANDIDATES + 3) / 4);
        if (rank < TOP_K) choose(rank, candidates[i], top, sum);
    }
    __syncthreads();
#endif

    // The rest is that of routing.cuh: divide the weights by their sum, and write ids and weights to `y`.
}
