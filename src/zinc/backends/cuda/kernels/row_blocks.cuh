// Blocks of neighbouring rows of one sequence, which thread blocks process in parallel. Blocks have
// slots in memory: those of a sequence are neighbours, and the first one is at `firstSlot`.

#pragma once

#include "step.cuh"

/// A block of rows: its slot, sequence, first row and number of rows, and the range of rows of the
/// sequence in this step.
struct RowBlock
{
    uint slot, sequence, start, rows, first, end;
};

/// Returns the slot of the first block of SIZE rows of a sequence. A sequence has at least as many
/// slots as blocks, and at least one.
template <uint SIZE> DEVICE uint firstSlot(StepHeader* step, uint sequence)
{
    return step->seq_start[sequence] / SIZE + sequence;
}

/// Returns the block at a slot, for all threads of a warp. It has no rows if the slot is empty.
template <uint SIZE> DEVICE RowBlock findBlock(StepHeader* step, uint slot)
{
    uint lane = threadIdx.x % SUBGROUP, n = step->sequences;
    for (uint group = 0; group < n; group += SUBGROUP)
    {
        uint sequence = min(group + lane, n - 1);
        uint first = step->seq_start[sequence], end = step->seq_start[sequence + 1];
        uint before = firstSlot<SIZE>(step, sequence);
        bool found = slot >= before && (slot - before) * SIZE < end - first;
        uint at = warpMin(found ? lane : SUBGROUP);
        if (at == SUBGROUP) continue;
        first = __shfl_sync(0xffffffffu, first, int(at));
        end = __shfl_sync(0xffffffffu, end, int(at));
        uint start = first + (slot - __shfl_sync(0xffffffffu, before, int(at))) * SIZE;
        return { slot, group + at, start, min(end - start, SIZE), first, end };
    }
    return { slot, 0, 0, 0, 0, 0 };
}
