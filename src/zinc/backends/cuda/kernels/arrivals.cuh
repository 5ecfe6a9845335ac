// Counting of blocks that have finished their part of a result, so that the last one completes it.

#pragma once

#include "prelude.cuh"

/// Adds 1 to a counter in global memory and returns its old value, with acquire and release order. Call
/// it after a barrier: blocks that add later then see what this block wrote before the barrier.
DEVICE uint countArrival(uint* counter)
{
#ifdef ZINC_EMULATED
    return atomicAdd(counter, 1u);
#else
    uint before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
#endif
}

/// Returns whether this block is the last of `n` blocks that call it with the same counter, which is 0
/// before and after that. The last block sees what the other blocks wrote before their calls. All
/// threads of a block call it together.
DEVICE bool arrivesLast(uint* counter, uint n, uint thread)
{
    SHARED bool is_last;
    __syncthreads();
    if (thread == 0)
    {
        is_last = countArrival(counter) == n - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    return is_last;
}
