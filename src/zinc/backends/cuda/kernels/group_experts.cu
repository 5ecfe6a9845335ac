// group_experts: a stable counting sort of slots (token * top_k + rank) by expert, in one block. Each
// warp sorts a range of slots, 32 at a time. Lanes with the same expert are found with
// __match_any_sync and keep the order of their numbers. There are no atomics, so the order is
// deterministic.

#include "arguments.h"

using Arguments = GroupExpertsArguments;

#include "step.cuh"

#define THREADS (EXPERTS * SEGMENTS) // EXPERTS: a power of two, at least the number of experts
#define MOST_WARPS (8192 / EXPERTS) // most warps whose counts fit into shared memory
#define WARPS (THREADS / SUBGROUP < MOST_WARPS ? THREADS / SUBGROUP : MOST_WARPS)
#define BATCH 4 // groups of 32 slots that a warp loads at once

SHARED uint counts[WARPS][EXPERTS]; // slots of earlier warps and groups with an expert
SHARED uint starts[EXPERTS]; // position of the first slot of each expert
SHARED uint waveSums[(EXPERTS + SUBGROUP - 1) / SUBGROUP];

constexpr uint NO_EXPERT = 0xffffffffu;

/// Loads the experts of the lane's slots in the groups starting at slot `from`. Slots at and after
/// `end` get NO_EXPERT.
DEVICE void loadExperts(ARGS, uint from, uint end, uint (&experts)[BATCH])
{
    UNROLL for (uint i = 0; i < BATCH; i++)
    {
        uint slot = from + i * SUBGROUP;
        experts[i] = NO_EXPERT;
        if (slot >= end) continue;
        float* row = (float*)(args.routes + uint64_t(slot / args.top_k) * args.routes_stride);
        experts[i] = uint(row[slot % args.top_k]);
    }
}

/// Adds the lanes with `expert` to its count. Returns the lane's position among the slots of
/// `expert`: the old count plus the number of earlier lanes with it.
DEVICE uint countLanes(uint (&counts)[EXPERTS], uint expert, uint lane)
{
    uint same = __match_any_sync(0xffffffffu, expert), before = same & ((1u << lane) - 1), count = 0;
    if (expert != NO_EXPERT) count = counts[expert];
    __syncwarp();
    if (expert != NO_EXPERT && before == 0) counts[expert] = count + __popc(same);
    __syncwarp();
    return count + __popc(before);
}

/// Replaces the counts of each warp by those of the warps before it. Returns the count of all warps.
DEVICE uint sumWarps(uint expert)
{
    uint sum = 0;
    for (uint w = 0; w < WARPS; w++)
    {
        uint own = counts[w][expert];
        counts[w][expert] = sum;
        sum += own;
    }
    return sum;
}

KERNEL(group_experts, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP, warp = thread / SUBGROUP;
    uint n = rowsOf(args.step, args.dim) * args.top_k, experts[BATCH];
    uint each = (n + WARPS * SUBGROUP - 1) / (WARPS * SUBGROUP) * SUBGROUP; // slots of a warp
    uint first = warp * each, end = warp < WARPS ? min(first + each, n) : 0;
    for (uint i = thread; i < WARPS * EXPERTS; i += THREADS) counts[i / EXPERTS][i % EXPERTS] = 0;
    __syncthreads();
    for (uint from = first; from < end; from += BATCH * SUBGROUP)
    {
        loadExperts(args, from + lane, end, experts);
        UNROLL for (uint i = 0; i < BATCH; i++) countLanes(counts[warp], experts[i], lane);
    }
    __syncthreads();

    // The first position of each expert is an exclusive prefix sum of the counts.
    uint all = 0, before = 0;
    if (thread < EXPERTS)
    {
        all = sumWarps(thread);
        before = warpPrefixSum(all);
        if (lane == SUBGROUP - 1) waveSums[warp] = before + all;
    }
    __syncthreads();
    if (thread < EXPERTS)
    {
        for (uint w = 0; w < warp; w++) before += waveSums[w];
        starts[thread] = before;
        if (thread < args.n_experts) args.starts[thread] = float(before);
        if (thread == 0) args.starts[args.n_experts] = float(n);
    }
    __syncthreads();

    for (uint from = first; from < end; from += BATCH * SUBGROUP)
    {
        loadExperts(args, from + lane, end, experts);
        UNROLL for (uint i = 0; i < BATCH; i++)
        {
            uint rank = countLanes(counts[warp], experts[i], lane);
            if (experts[i] == NO_EXPERT) continue;
            uint at = starts[experts[i]] + rank;
            uint8_t* row = args.order + uint64_t(at / args.top_k) * args.order_stride;
            ((float*)row)[at % args.top_k] = float(from + i * SUBGROUP + lane);
        }
    }
}
