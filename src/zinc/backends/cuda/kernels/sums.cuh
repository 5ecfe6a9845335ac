// Reduction of several sums over the lanes of a subgroup at once. In each step, a lane sends half of
// its values to its partner and keeps the other half: 4 sums over 32 lanes take 6 shuffles instead of
// 20.

#pragma once

#include "step.cuh"

/// The result of reduceSums in a lane: COUNT of N sums, from sum `first` on. Several lanes may hold the
/// same sums; one of them is the owner.
template <int N, int LANES = SUBGROUP>
struct ReducedSums
{
    static constexpr int COUNT = N > LANES ? N / LANES : 1;
    float sums[COUNT];
    uint first;
    bool is_owner;
};

/// Returns N sums (a power of two) of the values of LANES lanes. lane: index among these.
template <int N, int LANES = SUBGROUP>
DEVICE ReducedSums<N, LANES> reduceSums(const float (&values)[N], uint lane)
{
    float v[N];
    UNROLL for (int i = 0; i < N; i++) v[i] = values[i];
    ReducedSums<N, LANES> r;
    r.first = 0;
    r.is_owner = true;
    int half = N / 2;
    UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2)
    {
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
        half /= 2;
    }
    UNROLL for (int k = 0; k < r.COUNT; k++) r.sums[k] = v[k];
    return r;
}
