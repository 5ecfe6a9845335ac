// Tiles of the tokens of a step, none of which spans two sequences.

#pragma once

#include "step.cuh"

/// A tile of a step: its sequence, the first token and the number of tokens of that sequence in the
/// step, and the index of the tile among those of the sequence. It has no tokens if the step has fewer
/// tiles.
struct SequenceTile
{
    uint sequence, start, tokens, index;
};

/// Finds a tile of `tile_rows` rows, of which each token has `token_rows`. All lanes of a warp call
/// it: each counts the tiles of one sequence at a time.
DEVICE SequenceTile findSequenceTile(StepHeader* step, uint index, uint token_rows, uint tile_rows)
{
    const uint lane = threadIdx.x % SUBGROUP;
    for (uint group = 0; group < step->sequences; group += SUBGROUP)
    {
        const bool exists = group + lane < step->sequences;
        int* starts = step->seq_start + group + lane;
        const uint start = exists ? starts[0] : 0;
        const uint tokens = exists ? starts[1] - start : 0;
        const uint tiles = (tokens * token_rows + tile_rows - 1) / tile_rows;
        const uint before = warpPrefixSum(tiles);
        const uint at = warpMin(index >= before && index - before < tiles ? lane : SUBGROUP);
        if (at < SUBGROUP)
            return { group + at, __shfl_sync(0xffffffffu, start, int(at)),
                __shfl_sync(0xffffffffu, tokens, int(at)),
                index - __shfl_sync(0xffffffffu, before, int(at)) };
        index -= __shfl_sync(0xffffffffu, before + tiles, SUBGROUP - 1);
    }
    return { 0, 0, 0, 0 };
}
