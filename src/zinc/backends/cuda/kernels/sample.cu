// sample: samples a token from a row of logits (group.y). Each workgroup finds the k best of CHUNK
// logits, until one workgroup has those of all. That one (LAST) chooses as zinc.ops.sampling does. A
// candidate is a key that orders by logit, then by lower id; 0 is no candidate.
//
// Each thread finds the largest of its candidates. The k-th largest of these is a lower bound of the
// k-th largest candidate, and only k threads have candidates that reach it. Those are sorted.

#include "arguments.h"

using Arguments = SampleArguments;

#include "noise.cuh"
#include "step.cuh"

#define EACH (CHUNK / THREADS)         // candidates of a thread
#define AT_ONCE (EACH < 16 ? EACH : 16) // of these, loaded together

SHARED uint2 keys[EACH * TOP > THREADS ? EACH * TOP : THREADS];
SHARED uint n_found;
#if LAST
SHARED float logits[TOP], masses[TOP], sums[TOP];
SHARED uint n_kept; // candidates above minus infinity
#endif

constexpr uint NAN_BITS = 0xffffffffu, MINUS_INFINITY = 0x007fffffu; // ordered bits of a logit

DEVICE uint2 keyOf(float logit, uint id)
{
    uint bits = asuint(logit);
    uint ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    if ((bits & 0x7fffffffu) > 0x7f800000u) ordered = NAN_BITS;
    return uint2(ordered, ~id);
}

DEVICE uint idOfKey(uint2 key) { return ~key.y; }

DEVICE bool isLess(uint2 a, uint2 b) { return a.x < b.x || (a.x == b.x && a.y < b.y); }

DEVICE float logitOf(uint2 key)
{
    uint ordered = key.x;
    return asfloat((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

DEVICE uint2 candidate(ARGS, uint8_t* row, uint i)
{
    if (i >= args.n) return 0;
#if FIRST
    return keyOf(((float*)row)[i], i);
#else
    return ((uint2*)row)[i];
#endif
}

/// The largest key of a warp's lanes.
DEVICE uint2 largestOfWarp(uint2 key)
{
    UNROLL for (uint m = SUBGROUP / 2; m > 0; m /= 2)
    {
        const uint2 other = uint2(shuffleXor(key.x, m), shuffleXor(key.y, m));
        if (isLess(key, other)) key = other;
    }
    return key;
}

/// Moves the largest of all threads' keys to keys[0].
DEVICE void findLargest(uint2 best, uint thread)
{
    best = largestOfWarp(best);
    if (thread % SUBGROUP == 0) keys[thread / SUBGROUP] = best;
    __syncthreads();
    if (thread >= SUBGROUP) return;
    best = largestOfWarp(thread < THREADS / SUBGROUP ? keys[thread] : uint2(0));
    if (thread == 0) keys[0] = best;
}

/// Sorts the first `n` keys, a power of two, in descending order with a bitonic sort.
DEVICE void sortKeys(uint n, uint thread)
{
    for (uint size = 2; size <= n; size *= 2)
        for (uint stride = size / 2; stride > 0; stride /= 2)
        {
            for (uint i = thread; i < n / 2; i += THREADS)
            {
                uint a = 2 * i - (i & (stride - 1)), b = a + stride;
                uint2 x = keys[a], y = keys[b];
                if (isLess(x, y) == ((a & size) == 0))
                {
                    keys[a] = y;
                    keys[b] = x;
                }
            }
            __syncthreads();
        }
}

/// Moves the largest `k` candidates of `row` from `first` on to the first keys, in descending order,
/// and zeros behind them. best: the thread's largest.
DEVICE void findBest(ARGS, uint8_t* row, uint first, uint2 best, uint k, uint thread)
{
    keys[thread] = best;
    if (thread == 0) n_found = 0;
    __syncthreads();
    sortKeys(THREADS, thread);
    const uint2 least = keys[k - 1];
    __syncthreads(); // all threads have read it
    if (best.x != 0 && !isLess(best, least))
        for (uint e = 0; e < EACH; e += AT_ONCE)
        {
            uint2 near[AT_ONCE]; // loaded before a key is stored, which may alias them
            UNROLL for (uint i = 0; i < AT_ONCE; i++)
                near[i] = candidate(args, row, first + (e + i) * THREADS + thread);
            UNROLL for (uint i = 0; i < AT_ONCE; i++)
                if (near[i].x != 0 && !isLess(near[i], least))
                    keys[atomicAdd(&n_found, 1u)] = near[i];
        }
    __syncthreads();
    uint n = TOP;
    while (n < n_found) n *= 2;
    for (uint i = n_found + thread; i < n; i += THREADS) keys[i] = 0;
    __syncthreads();
    sortKeys(n, thread);
}

#if LAST
/// The rank of the sampled candidate among `n` whose logits are in descending order.
DEVICE uint sampledRank(SampleParams* params, uint n)
{
    uint kept = n, least = uint(max(params->min_keep, 1));
    if (params->top_p < 1)
    {
        float mass = 0;
        _Pragma("unroll 8") for (uint i = 0; i < n; i++) mass += masses[i];
        float target = mass * (params->top_p * (1.0f - 1e-6f)), sum = 0;
        uint reached = 1;
        _Pragma("unroll 8") for (uint i = 0; i < n; i++)
        {
            sum += masses[i];
            if (sum < target) reached++;
        }
        kept = min(kept, max(reached, least));
    }
    if (params->min_p > 0)
    {
        float threshold = logits[0] + log(params->min_p);
        uint likely = 0;
        _Pragma("unroll 8") for (uint i = 0; i < n; i++) likely += logits[i] >= threshold ? 1 : 0;
        kept = min(kept, max(likely, least));
    }
    uint rank = 0;
    _Pragma("unroll 8") for (uint i = 1; i < kept; i++)
        if (sums[i] > sums[rank]) rank = i;
    return rank;
}
#endif

KERNEL(sample, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint row = group.y;
    if (row >= args.step->outputs) return;
    SampleParams* params = args.step->sample_params + row;
    if (params->k <= 0) return;
    uint8_t* from = args.source + uint64_t(row) * args.source_stride;
#if LAST
    if (thread == 0) n_kept = 0;
#endif
    const uint first = group.x * CHUNK;
    uint2 best = 0;
    UNROLL for (uint e = 0; e < EACH; e++)
    {
        const uint2 key = candidate(args, from, first + e * THREADS + thread);
        if (isLess(best, key)) best = key;
    }
    if (params->k == 1) findLargest(best, thread);
    else findBest(args, from, first, best, params->k, thread);
    __syncthreads();

    uint8_t* to = args.target + uint64_t(row) * args.target_stride;
#if LAST
    const uint k = uint(params->k);
    if (thread < k)
    {
        const float t = params->temperature, most = logitOf(keys[0]), logit = logitOf(keys[thread]);
        logits[thread] = logit;
        masses[thread] = exp(logit - most);
        sums[thread] = logit / t - most / t
            + gumbel(params->seed, params->token_index, idOfKey(keys[thread]));
        const bool exists = keys[thread].x > MINUS_INFINITY;
        const bool is_last = thread + 1 == k || keys[thread + 1].x <= MINUS_INFINITY;
        if (exists && is_last) n_kept = thread + 1;
    }
    __syncthreads();
    if (thread > 0) return;
    const uint rank = n_kept > 1 ? sampledRank(params, n_kept) : 0;
    *(float2*)to = float2(float(idOfKey(keys[rank])), logits[0]);
#else
    for (uint i = thread; i < TOP; i += THREADS)
        ((uint2*)to)[group.x * TOP + i] = i < uint(params->k) ? keys[i] : 0;
#endif
}
