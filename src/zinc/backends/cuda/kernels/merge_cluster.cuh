// Merge of the partial sums of attention by the blocks of a cluster. Each block merges a share of
// the columns, which the others send to it.

#include "cluster.cuh"

#define SHARE ((FOURS / 8 + CLUSTER - 1) / CLUSTER * 8) // most float4s that a block merges

/// Four columns of a block's sums, with maximum and sum of the softmax in `total`.
struct BlockSums
{
    float4 sums, total;
};

SHARED BlockSums received[CLUSTER][SHARE];

/// Returns the number of float4s that this block merges.
DEVICE uint ownShare()
{
    const uint first = clusterRank() * SHARE;
    return first < FOURS ? min(SHARE, FOURS - first) : 0;
}

/// Prepares the block to receive its share. All threads call it together.
DEVICE void openShare(uint thread) { openMailbox(ownShare() * CLUSTER * sizeof(BlockSums), thread); }

/// Sends float4 i of this block's sums to the block that merges it.
DEVICE void sendSums(uint i, float4 sums, OnlineSoftmax total)
{
    BlockSums& to = received[clusterRank()][i % SHARE];
    send(to.sums, sums, i / SHARE);
    send(to.total, float4(total.maximum, total.sum, 0, 0), i / SHARE);
}

/// Merges and stores the block's share.
DEVICE void mergeShare(ARGS, KeySplit split, uint thread)
{
    for (uint slot = thread; slot < ownShare(); slot += THREADS)
    {
        awaitMail();
        OnlineSoftmax all = { received[0][slot].total.x, received[0][slot].total.y };
        float4 y = received[0][slot].sums;
        UNROLL for (uint b = 1; b < CLUSTER; b++)
        {
            const BlockSums& other = received[b][slot];
            OnlineSoftmax total = { other.total.x, other.total.y };
            const float2 correction = mergeInto(all, total);
            y = y * correction.x + other.sums * correction.y;
        }
        const uint four = clusterRank() * SHARE + slot, r = 4 * four / HEAD_DIM_V;
        split.storeMerged(args, r, 4 * four % HEAD_DIM_V, y, all);
    }
}
