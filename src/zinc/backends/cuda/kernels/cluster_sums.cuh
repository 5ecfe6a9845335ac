// Sums over the blocks of a cluster (cluster.cuh) that split the columns of a product. Each block
// adds the sums of all blocks for its share of the rows. BLOCKS is the number of blocks, 1 without a
// cluster.

#pragma once

#include "prelude.cuh"

#ifdef CLUSTER
#define BLOCKS CLUSTER
#else
#define BLOCKS 1
#endif

#if BLOCKS == 1

DEVICE uint clusterRank() { return 0; }
DEVICE void shareSums(const uint8_t*, uint, uint) {}
DEVICE void endSharing(uint) {}
DEVICE uint firstShare() { return 0; }
DEVICE uint endShare() { return 1; }
DEVICE float4 clusterSum(const float* sum, uint) { return *(const float4*)sum; }

#elif defined(ZINC_EMULATED)

#include "cluster_sums.h"

// Blocks run one after another, so the last block of a cluster stores the shares of all.
DEVICE uint clusterRank() { return blockIdx.x % BLOCKS; }

DEVICE void shareSums(const uint8_t* sums, uint bytes, uint tile)
{
    emulator::share_sums(tile, sums, bytes);
}

DEVICE void endSharing(uint tile) { emulator::end_sharing(BLOCKS, tile); }
DEVICE uint firstShare() { return 0; }
DEVICE uint endShare() { return clusterRank() == BLOCKS - 1 ? BLOCKS : 0; }

DEVICE float4 clusterSum(const float* sum, uint tile)
{
    float4 total;
    UNROLL for (uint e = 0; e < 4; e++) total[e] = emulator::cluster_sum(BLOCKS, tile, sum + e);
    return total;
}

#else

#include "cluster.cuh"

/// Waits until all blocks of the cluster have written their sums for a tile, which are `bytes`
/// bytes of shared memory. All threads call it.
DEVICE void shareSums(const uint8_t* sums, uint bytes, uint tile)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Waits until all blocks of the cluster have read the sums for a tile. All threads call it.
DEVICE void endSharing(uint tile)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::: "memory");
}

/// The shares of a tile's rows that this block stores are firstShare() to endShare() - 1.
DEVICE uint firstShare() { return clusterRank(); }
DEVICE uint endShare() { return clusterRank() + 1; }

/// Returns the totals over the blocks of four sums for a tile, which begin at an address of shared
/// memory.
DEVICE float4 clusterSum(const float* sum, uint tile)
{
    float4 found[BLOCKS];
    UNROLL for (uint b = 0; b < BLOCKS; b++)
    {
        float4& v = found[b];
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(remoteAddress(sum, b))
                     : "memory");
    }
    float4 total = found[0];
    UNROLL for (uint b = 1; b < BLOCKS; b++) total += found[b];
    return total;
}

#endif
