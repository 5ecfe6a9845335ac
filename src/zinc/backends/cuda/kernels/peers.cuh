// Flags through which GPUs with peer access synchronise.

#pragma once

#include "prelude.cuh"

#define PEER_TIMEOUT_NS 20000000000ull // the kernel fails if a peer is later

/// Writes `value` to a flag in the memory of any GPU, after all earlier writes of the block.
/// The block calls `__syncthreads` first.
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

/// Waits until a peer has set a flag to `value` or to the next value. After `__syncthreads` the block
/// sees what the peer wrote before. The kernel fails after PEER_TIMEOUT_NS.
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
