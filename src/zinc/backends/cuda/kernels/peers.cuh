// Flags in the memory of several cards, which write each other's memory.

#pragma once

#include "prelude.cuh"

#define PEER_TIMEOUT_NS 20000000000ull // after which a card is given up

/// Writes `value` to a flag in the memory of any card, after all writes of the block so far.
/// `__syncthreads` comes before it.
DEVICE void setFlag(uint* flag, uint value)
{
#ifdef ZINC_EMULATED
    __atomic_store_n(flag, value, __ATOMIC_SEQ_CST);
#else
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#endif
}

/// Returns whether a flag has reached `value`. Values only grow, and may wrap around.
DEVICE bool hasReached(uint found, uint value) { return int(found - value) >= 0; }

/// Waits until another card has set a flag to `value`. That card may already have set it to the next
/// one. After `__syncthreads` the block sees what the card wrote before. The kernel fails if the card
/// does not set it in time.
DEVICE void awaitFlag(uint* flag, uint value)
{
#ifdef ZINC_EMULATED
    while (!hasReached(__atomic_load_n(flag, __ATOMIC_SEQ_CST), value))
        std::this_thread::sleep_for(std::chrono::microseconds(20));
#else
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    for (uint found;;)
    {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
        if (hasReached(found, value)) return;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now - start > PEER_TIMEOUT_NS) __trap();
    }
#endif
}
