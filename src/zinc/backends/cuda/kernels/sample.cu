// sample: samples a token from a row of logits (group.y). In each launch, a workgroup finds the k best
// of CHUNK candidates, until one workgroup has all that are left. That workgroup (LAST) samples as
// zinc.ops.sampling does. A candidate is a 64-bit key that orders by logit, then by lower id. A key
// whose upper half is 0 is no candidate.
//
// Each thread finds the largest of its candidates. The k-th largest of these is a lower bound of the
// k-th largest candidate, and only k threads have candidates that reach it. Nothing is sorted: a thread
// counts the keys that are larger than its key, which gives the rank of its key.
//
// Chunks store candidates by rank, so that the threads of the next launch share the best of them:
//
//     source [k, chunks]: the largest key of each chunk, then the second largest of each, ...

#include "arguments.h"

using Arguments = SampleArguments;

#include "noise.cuh"
#include "step.cuh"

#define EACH (CHUNK / THREADS) // candidates per thread

#if FIRST
typedef float Stored; // a logit
#else
typedef uint64_t Stored; // a key
#endif

SHARED __align__(16) uint64_t keys[EACH * TOP > THREADS ? EACH * TOP : THREADS];
SHARED uint64_t largest, bound; // the largest key, and a lower bound of the k-th largest
SHARED uint n_found;
#if LAST
SHARED uint ids[TOP];
SHARED float masses[TOP], sums[TOP];
SHARED uint n_likely; // candidates that min_p keeps
#endif

constexpr uint NAN_BITS = 0xffffffffu, MINUS_INFINITY = 0x007fffffu; // ordered bits of a logit

// The least key of a candidate. The last launch leaves out those of minus infinity.
constexpr uint64_t LEAST_KEY = uint64_t(LAST ? MINUS_INFINITY + 1 : 1) << 32;

DEVICE uint64_t keyOf(float logit, uint id)
{
    uint bits = asuint(logit);
    uint ordered = bits ^ (uint(int(bits) >> 31) | 0x80000000u);
    if ((bits & 0x7fffffffu) > 0x7f800000u) ordered = NAN_BITS;
    return uint64_t(ordered) << 32 | ~id;
}

DEVICE uint64_t keyOf(uint64_t key, uint) { return key; }

DEVICE uint idOfKey(uint64_t key) { return ~uint(key); }

DEVICE float logitOf(uint64_t key)
{
    uint ordered = uint(key >> 32);
    return asfloat((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

/// Returns the largest key of a warp's lanes.
DEVICE uint64_t largestOfWarp(uint64_t key)
{
    const uint ordered = uint(key >> 32), most = warpMax(ordered);
    return uint64_t(most) << 32 | warpMax(ordered == most ? uint(key) : 0u);
}

/// Returns the largest of all threads' keys.
DEVICE uint64_t largestOfBlock(uint64_t key, uint thread)
{
    key = largestOfWarp(key);
    if (thread % SUBGROUP == 0) keys[thread / SUBGROUP] = key;
    __syncthreads();
    UNROLL for (uint warp = 0; warp < THREADS / SUBGROUP; warp++) key = max(key, keys[warp]);
    return key;
}

/// Returns how many of the first `n` keys are larger than `key`.
DEVICE uint rankOf(uint64_t key, uint n)
{
    uint rank = 0;
    _Pragma("unroll 8") for (uint i = 0; i < n; i++) rank += keys[i] > key ? 1 : 0;
    return rank;
}

/// Moves the candidates that reach `bound` to the first `n_found` keys, in any order. These include the
/// `k` largest candidates of all threads, and few others. best: the thread's largest candidate.
DEVICE void findBest(const uint64_t (&own)[EACH], uint64_t best, uint k, uint thread)
{
    keys[thread] = best;
    if (thread == 0)
    {
        bound = LEAST_KEY;
        n_found = 0;
    }
    __syncthreads();
    const uint rank = rankOf(best, THREADS);
    if (rank == 0) largest = best;
    if (rank == k - 1 && best > LEAST_KEY) bound = best;
    __syncthreads();
    const uint64_t least = bound;
    if (best >= least)
    {
        uint n = 0;
        UNROLL for (uint e = 0; e < EACH; e++) n += own[e] >= least ? 1 : 0;
        uint at = atomicAdd(&n_found, n);
        UNROLL for (uint e = 0; e < EACH; e++)
            if (own[e] >= least) keys[at++] = own[e];
    }
    __syncthreads();
}

#if LAST
/// Returns the rank of the sampled candidate among `n`. All lanes of a warp call it.
DEVICE uint sampledRank(const SampleParams& params, uint n, uint lane)
{
    const uint least = uint(max(params.min_keep, 1));
    uint kept = min(n, max(n_likely, least));
    if (params.top_p < 1)
    {
        float mass = 0;
        _Pragma("unroll 8") for (uint i = 0; i < n; i++) mass += masses[i];
        float target = mass * (params.top_p * (1.0f - 1e-6f)), sum = 0;
        uint reached = 1;
        _Pragma("unroll 8") for (uint i = 0; i < n; i++)
        {
            sum += masses[i];
            if (sum < target) reached++;
        }
        kept = min(kept, max(reached, least));
    }
    uint64_t best = 0;
    for (uint i = lane; i < kept; i += SUBGROUP) best = max(best, keyOf(sums[i], i));
    return idOfKey(largestOfWarp(best));
}
#endif

KERNEL(sample, Arguments)
{
    const uint chunk = blockIdx.x, row = blockIdx.y, thread = threadIdx.x;
    const volatile StepHeader* step = args.step; // volatile keeps both loads before the test
    const SampleParams* row_params = step->sample_params + row;
    if (row >= step->outputs) return;
    const SampleParams params = *row_params;
    const uint first = chunk * CHUNK + thread;
    const Stored* from = (Stored*)(args.source + uint64_t(row) * args.source_stride) + first;
    Stored stored[EACH];
    UNROLL for (uint e = 0; e < EACH; e++)
        stored[e] = first + e * THREADS < args.n ? from[e * THREADS] : 0;
    __syncthreads(); // without it, the compiler waits for some loads before it issues others
    if (params.k <= 0) return;
#if FIRST
    for (uint b = 0; b < params.n_banned; b++)
        UNROLL for (uint e = 0; e < EACH; e++)
            if (first + e * THREADS == row_params->banned[b]) stored[e] = asfloat(0xff800000u); // -infinity
#endif
    const uint k = uint(params.k), n = FIRST ? args.n : k * (args.n / TOP);
    uint64_t own[EACH], best = 0;
    UNROLL for (uint e = 0; e < EACH; e++)
    {
        const uint i = first + e * THREADS;
        const uint64_t key = keyOf(stored[e], i);
        own[e] = i < n ? key : uint(key); // the id alone is no candidate
        best = max(best, own[e]);
    }
    uint8_t* to = args.target + uint64_t(row) * args.target_stride;
#if LAST
    if (k == 1) best = largestOfBlock(best, thread);
    else
    {
        if (thread == 0) n_likely = 0;
        findBest(own, best, k, thread);
        best = largest;
        const float most = logitOf(best), t = params.temperature;
        for (uint i = thread; i < n_found; i += THREADS)
        {
            const uint rank = rankOf(keys[i], n_found), id = idOfKey(keys[i]);
            if (rank >= k) continue;
            const float logit = logitOf(keys[i]);
            ids[rank] = id;
            masses[rank] = exp(logit - most);
            sums[rank] = logit / t - most / t + gumbel(params.seed, params.token_index, id);
            if (params.min_p <= 0 || logit >= most + log(params.min_p)) atomicAdd(&n_likely, 1u);
        }
        __syncthreads();
    }
    if (thread >= SUBGROUP) return;
    uint id = idOfKey(best);
    if (k > 1 && n_found > 1) id = ids[sampledRank(params, min(k, n_found), thread)];
    if (thread == 0) *(float2*)to = float2(float(id), logitOf(best));
#else
    const uint chunks = (args.n + CHUNK - 1) / CHUNK;
    uint64_t* ranked = (uint64_t*)to + chunk;
    if (k == 1)
    {
        best = largestOfBlock(best, thread);
        if (thread == 0) ranked[0] = best;
        return;
    }
    findBest(own, best, k, thread);
    for (uint i = thread; i < n_found; i += THREADS)
    {
        const uint rank = rankOf(keys[i], n_found);
        if (rank < k) ranked[rank * chunks] = keys[i];
    }
    for (uint rank = n_found + thread; rank < k; rank += THREADS) ranked[rank * chunks] = 0;
#endif
}
