// Clusters (sm_90 and newer): neighbouring blocks that run at the same time and write each other's
// shared memory. The macro CLUSTER is the number of their blocks, which lie side by side along x.

#pragma once

#include "mma.cuh"

/// Returns the number of this block in its cluster.
DEVICE uint clusterRank()
{
    uint rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// An mbarrier that counts the bytes that the blocks of the cluster send to this block.
SHARED uint64_t mailbox;

/// Opens the mailbox of this block for `bytes`. All threads call it together, long before the first
/// `send`.
DEVICE void openMailbox(uint bytes, uint thread)
{
    if (thread == 0)
    {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(sharedAddress(&mailbox)));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                         sharedAddress(&mailbox)),
                     "r"(bytes));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// Waits until all blocks of the cluster have opened their mailboxes. All threads call it together.
DEVICE void awaitMailboxes() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

DEVICE uint remoteAddress(const void* x, uint rank)
{
    uint address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(sharedAddress(x)), "r"(rank));
    return address;
}

/// Writes `v` to `to`, which lies in shared memory, in the block `rank` of the cluster.
DEVICE void send(float4& to, float4 v, uint rank)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(remoteAddress(&to, rank)),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(remoteAddress(&mailbox, rank))
                 : "memory");
}

/// Waits until the mailbox has received all bytes that it was opened for.
DEVICE void awaitMail()
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(sharedAddress(&mailbox))
                 : "memory");
}
