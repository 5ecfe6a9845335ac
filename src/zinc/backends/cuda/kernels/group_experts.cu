// group_experts: a stable counting sort of slots (token * top_k + rank) by expert, in one
// workgroup. A thread has one expert and one of SEGMENTS segments of slots. It reads all expert ids
// of the segment and picks those of its expert. There are no atomics, so the order is always the
// same.

#include "arguments.h"

using Arguments = GroupExpertsArguments;

#include "step.cuh"

#define THREADS (EXPERTS * SEGMENTS) // EXPERTS: a power of two, at least the number of experts
#define TILE 4096 // slots whose ids are staged in shared memory at once

SHARED uint4 ids[TILE / 4];
SHARED uint counts[SEGMENTS][EXPERTS];
SHARED uint next[EXPERTS]; // position of the next slot of each expert, before this tile
SHARED uint waveSums[(EXPERTS + SUBGROUP - 1) / SUBGROUP];

/// Loads expert ids of slots from `from` on, at most TILE. Returns how many.
DEVICE uint loadIds(ARGS, uint thread, uint from, uint n)
{
    uint count = min(TILE, n - from);
    __syncthreads();
    for (uint i = thread; i < (count + 3) / 4 * 4; i += THREADS)
    {
        uint slot = from + min(i, count - 1);
        float* row = (float*)(args.routes + uint64_t(slot / args.top_k) * args.routes_stride);
        ids[i / 4][i % 4] = i < count ? uint(row[slot % args.top_k]) : 0xffffffffu;
    }
    __syncthreads();
    return count;
}

/// Returns the range of a segment among `count` slots, in groups of four: first and end.
DEVICE uint2 foursOf(uint segment, uint count)
{
    uint fours = (count + 3) / 4, each = (fours + SEGMENTS - 1) / SEGMENTS;
    return uint2(min(segment * each, fours), min((segment + 1) * each, fours));
}

DEVICE uint countIn(uint2 fours, uint expert)
{
    uint count = 0;
    for (uint i = fours.x; i < fours.y; i++)
    {
        uint4 four = ids[i];
        UNROLL for (uint j = 0; j < 4; j++) count += uint(four[j] == expert);
    }
    return count;
}

DEVICE uint totalOf(uint expert, uint segments)
{
    uint total = 0;
    for (uint s = 0; s < segments; s++) total += counts[s][expert];
    return total;
}

KERNEL(group_experts, Arguments)
{
    const uint thread = threadIdx.x;
    uint n = rowsOf(args.step, args.dim) * args.top_k, loaded = 0;
    uint expert = thread % EXPERTS, segment = thread / EXPERTS, own = 0;
    for (uint from = 0; from < n; from += TILE)
    {
        loaded = loadIds(args, thread, from, n);
        own += countIn(foursOf(segment, loaded), expert);
    }
    counts[segment][expert] = own;
    __syncthreads();

    // The first position of each expert is an exclusive prefix sum of the counts.
    uint all = 0, before = 0;
    if (thread < EXPERTS)
    {
        all = totalOf(expert, SEGMENTS);
        before = warpPrefixSum(all);
        if (thread % SUBGROUP == SUBGROUP - 1) waveSums[thread / SUBGROUP] = before + all;
    }
    __syncthreads();
    if (thread < EXPERTS)
    {
        for (uint w = 0; w < thread / SUBGROUP; w++) before += waveSums[w];
        next[expert] = before;
        if (expert < args.n_experts) args.starts[expert] = float(before);
        if (thread == 0) args.starts[args.n_experts] = float(n);
    }
    __syncthreads();

    for (uint from = 0; from < n; from += TILE)
    {
        if (n > TILE) // otherwise the tile and its counts are still in shared memory
        {
            loaded = loadIds(args, thread, from, n);
            counts[segment][expert] = countIn(foursOf(segment, loaded), expert);
            __syncthreads();
        }
        uint at = next[expert] + totalOf(expert, segment);
        uint2 fours = foursOf(segment, loaded);
        for (uint i = fours.x; i < fours.y; i++)
        {
            uint4 four = ids[i];
            UNROLL for (uint j = 0; j < 4; j++)
            {
                if (four[j] != expert) continue;
                uint8_t* row = args.order + uint64_t(at / args.top_k) * args.order_stride;
                ((float*)row)[at % args.top_k] = float(from + 4 * i + j);
                at++;
            }
        }
        __syncthreads();
        if (segment == SEGMENTS - 1) next[expert] = at;
    }
}
