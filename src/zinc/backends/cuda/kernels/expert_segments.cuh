// Segments of the slots of experts: up to SEGMENT slots of one expert, in the order of `args.order`.
// Blocks share chunks of the segments evenly, one after another.
//   EXPERTS  experts of the layer
//   SEGMENT  most slots of a segment

#pragma once

SHARED uint starts[EXPERTS + 1];        // position of the first slot of each expert
SHARED uint firstSegments[EXPERTS + 1]; // segments of earlier experts
SHARED uint warpSegments[WARPS];

/// Counts the segments of each expert. All threads of the block call it.
DEVICE void countSegments(ARGS, uint thread)
{
    constexpr uint EACH = (EXPERTS + THREADS - 1) / THREADS; // experts per thread
    const uint lane = thread % SUBGROUP, warp = thread / SUBGROUP;
    uint counts[EACH], sum = 0;
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        const uint e = min(thread * EACH + i, uint(EXPERTS));
        const uint at = uint(args.starts[e]), end = uint(args.starts[min(e + 1, uint(EXPERTS))]);
        starts[e] = at;
        counts[i] = (end - at + SEGMENT - 1) / SEGMENT;
        sum += counts[i];
    }
    if (thread == 0) starts[EXPERTS] = uint(args.starts[EXPERTS]);
    uint before = warpPrefixSum(sum);
    if (lane == SUBGROUP - 1) warpSegments[warp] = before + sum;
    __syncthreads();
    for (uint w = 0; w < warp; w++) before += warpSegments[w];
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        const uint e = thread * EACH + i;
        if (e <= EXPERTS) firstSegments[e] = before;
        before += counts[i];
    }
    if (thread == THREADS - 1) firstSegments[EXPERTS] = before;
    __syncthreads();
}

/// A chunk of the rows of a segment.
struct Chunk
{
    uint index, last;     // chunk number and the end of the block's range, counted segment by segment
    uint expert, at, end; // at, end: range of the segment's slots in `args.order`
    uint place;           // index of the chunk in its segment

    /// Begins with the first of the block's chunks, if there is one. chunks: chunks per segment.
    MEMBER explicit Chunk(uint chunks)
    {
        const uint n = firstSegments[EXPERTS] * chunks;
        index = n * blockIdx.x / gridDim.x;
        last = n * (blockIdx.x + 1) / gridDim.x;
        expert = 0;
        for (uint step = 1u << 15; step > 0; step /= 2)
            if (expert + step < EXPERTS && firstSegments[expert + step] <= index / chunks)
                expert += step;
        if (exists()) find(chunks);
    }

    MEMBER bool exists() const { return index < last; }

    MEMBER void advance(uint chunks, uint by)
    {
        index += by;
        if (exists()) find(chunks);
    }

private:
    /// Finds the slots of the chunk. `expert` must not be after the expert of the chunk.
    MEMBER void find(uint chunks)
    {
        const uint segment = index / chunks;
        while (firstSegments[expert + 1] <= segment) expert++;
        at = starts[expert] + (segment - firstSegments[expert]) * SEGMENT;
        end = min(at + SEGMENT, starts[expert + 1]);
        place = index % chunks;
    }
};
