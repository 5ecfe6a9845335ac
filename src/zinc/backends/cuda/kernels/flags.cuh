// Flags in global memory, with which a block signals that a later block may read its results. A
// flag is 0 before and after a kernel.

#pragma once

#include "prelude.cuh"

/// Raises a flag after all writes of the block so far. `__syncthreads` comes before it.
DEVICE void raiseFlag(uint* flag)
{
#ifdef ZINC_EMULATED
    __atomic_store_n(flag, 1u, __ATOMIC_SEQ_CST);
#else
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
#endif
}

/// Waits until another block has raised a flag, and lowers it. That block must have a smaller number,
/// so that it started before. After `__syncthreads` the block sees what the other one wrote before.
DEVICE void takeFlag(uint* flag)
{
#ifdef ZINC_EMULATED
    while (!__atomic_load_n(flag, __ATOMIC_SEQ_CST)) emulator::yield();
#else
    for (uint raised = 0; !raised;)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
#endif
    *flag = 0;
}
