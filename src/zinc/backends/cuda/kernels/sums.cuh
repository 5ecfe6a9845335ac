// Several sums over the lanes of a subgroup at once. In each step a lane gives half of its values
// to its partner and keeps the other half: 4 sums over 32 lanes take 6 shuffles instead of 20.

#pragma once

#include "step.cuh"

#define STEPS (SUBGROUP == 8 ? 3 : SUBGROUP == 16 ? 4 : SUBGROUP == 32 ? 5 : 6)

/// The lane has COUNT of N sums, from sum `first` on. Of lanes with the same sums one is the owner.
template <int N>
struct ReducedSums
{
    static constexpr int COUNT = N > SUBGROUP ? N / SUBGROUP : 1;
    float sums[COUNT];
    uint first;
    bool is_owner;
};

/// Returns N sums (a power of two) of the values of all lanes.
template <int N>
DEVICE ReducedSums<N> reduceSums(const float (&values)[N], uint lane)
{
    float v[N];
    UNROLL for (int i = 0; i < N; i++) v[i] = values[i];
    ReducedSums<N> r;
    r.first = 0;
    r.is_owner = true;
    UNROLL for (int s = 0; s < STEPS; s++)
    {
        int mask = SUBGROUP >> (s + 1), half = N >> (s + 1);
        bool upper = (lane & mask) != 0;
        if (half > 0)
        {
            UNROLL for (int i = 0; i < N / 2; i++)
                if (i < half)
                {
                    float kept = upper ? v[i + half] : v[i], given = upper ? v[i] : v[i + half];
                    v[i] = kept + shuffleXor(given, mask);
                }
            r.first += upper ? half : 0;
        }
        else
        {
            v[0] += shuffleXor(v[0], mask);
            r.is_owner = r.is_owner && !upper;
        }
    }
    UNROLL for (int k = 0; k < r.COUNT; k++) r.sums[k] = v[k];
    return r;
}
