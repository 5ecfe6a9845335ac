// sample: samples a token from a row of logits (group.y). Workgroups sort CHUNK logits each and
// pass on the TOP best, until one workgroup has them all. That one (LAST) chooses as
// zinc.ops.sampling does. A candidate is a key that orders by logit, then by lower id.

#include "arguments.h"

using Arguments = SampleArguments;

#include "noise.cuh"
#include "step.cuh"

SHARED uint2 keys[CHUNK];
#if LAST
SHARED float logits[TOP], sums[TOP];
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

/// Moves the largest key to keys[0].
DEVICE void findLargest(uint thread)
{
    uint2 key = thread < CHUNK ? keys[thread] : uint2(0);
    UNROLL for (uint i = THREADS; i < CHUNK; i += THREADS)
        if (isLess(key, keys[i + thread])) key = keys[i + thread];
    key = largestOfWarp(key);
    __syncthreads(); // all keys have been read
    if (thread % SUBGROUP == 0) keys[thread / SUBGROUP] = key;
    __syncthreads();
    if (thread >= SUBGROUP) return;
    key = largestOfWarp(thread < THREADS / SUBGROUP ? keys[thread] : uint2(0));
    if (thread == 0) keys[0] = key;
}

/// Sorts the keys in descending order with a bitonic sort.
DEVICE void sortKeys(uint thread)
{
    for (uint size = 2; size <= CHUNK; size *= 2)
        for (uint stride = size / 2; stride > 0; stride /= 2)
        {
            for (uint i = thread; i < CHUNK / 2; i += THREADS)
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

#if LAST
/// The rank of the sampled candidate among `n` whose logits are in descending order.
DEVICE uint sampledRank(SampleParams* params, uint n)
{
    uint kept = n, least = uint(max(params->min_keep, 1));
    if (params->top_p < 1)
    {
        float mass = 0;
        for (uint i = 0; i < n; i++) mass += exp(logits[i] - logits[0]);
        float target = mass * (params->top_p * (1.0f - 1e-6f)), sum = 0;
        uint reached = 1;
        for (uint i = 0; i < n; i++)
        {
            sum += exp(logits[i] - logits[0]);
            if (sum < target) reached++;
        }
        kept = min(kept, max(reached, least));
    }
    if (params->min_p > 0)
    {
        float threshold = logits[0] + log(params->min_p);
        uint likely = 0;
        for (uint i = 0; i < n; i++) likely += logits[i] >= threshold ? 1 : 0;
        kept = min(kept, max(likely, least));
    }
    uint rank = 0;
    for (uint i = 1; i < kept; i++)
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
    for (uint i = thread; i < CHUNK; i += THREADS)
        keys[i] = candidate(args, from, group.x * CHUNK + i);
    __syncthreads();
    if (params->k == 1) findLargest(thread);
    else sortKeys(thread);

    uint8_t* to = args.target + uint64_t(row) * args.target_stride;
#if LAST
    if (thread < TOP)
    {
        float t = params->temperature;
        logits[thread] = logitOf(keys[thread]);
        if (params->k > 1)
            sums[thread] = logits[thread] / t - logitOf(keys[0]) / t
                + gumbel(params->seed, params->token_index, idOfKey(keys[thread]));
    }
    __syncthreads();
    if (thread > 0) return;
    uint n = 0;
    while (n < uint(params->k) && keys[n].x > MINUS_INFINITY) n++;
    uint rank = n > 1 ? sampledRank(params, n) : 0;
    *(float2*)to = float2(float(idOfKey(keys[rank])), logits[0]);
#else
    // A row that takes the best token passes on no other candidates.
    for (uint i = thread; i < TOP; i += THREADS)
        ((uint2*)to)[group.x * TOP + i] = params->k > 1 || i == 0 ? keys[i] : 0;
#endif
}
