// Counting of blocks that have finished their part of a result, so that the last one completes it.

#pragma once

#include "prelude.cuh"

/// Returns whether this block is the last of `n` blocks that call it with the same counter, which is
/// 0 before and after that. The last block sees what the others wrote before. All threads of a
/// block call it together.
DEVICE bool arrivesLast(uint* counter, uint n, uint thread)
{
    SHARED bool is_last;
    __threadfence();
    __syncthreads();
    if (thread == 0)
    {
        is_last = atomicAdd(counter, 1u) == n - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    if (is_last) __threadfence();
    return is_last;
}
