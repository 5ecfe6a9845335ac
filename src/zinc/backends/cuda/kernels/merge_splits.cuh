// Merge of the partial sums of attention. Of the blocks with splits of the same queries, the last one
// to finish merges them: each warp computes the weights of the splits of a query, then each thread adds
// up columns.

#include "arrivals.cuh"

#define MAX_SPLITS 128
#define LANE_SPLITS (MAX_SPLITS / SUBGROUP)
#define COLUMN_FOURS (HEAD_DIM_V / 4)
#define AHEAD 16 // splits whose sums a thread prefetches

SHARED float splitWeights[ROWS][MAX_SPLITS];

/// The partial sums of the first split of query r. Maximum and sum of the softmax follow the columns.
DEVICE float4* partialsOf(ARGS, const KeySplit& split, uint r)
{
    const uint head = split.tokenOf(r) * args.n_heads + split.headOf(r);
    return (float4*)args.partial + head * args.splits * (COLUMN_FOURS + 1);
}

/// Computes the weights of the splits of query r; the output is the weighted sum of their partial sums.
DEVICE void findSplitWeights(ARGS, const KeySplit& split, uint r, uint lane)
{
    float4* from = partialsOf(args, split, r) + COLUMN_FOURS;
    float maximums[LANE_SPLITS], sums[LANE_SPLITS], maximum = MASKED, sum = 0;
    UNROLL for (uint i = 0; i < LANE_SPLITS; i++)
    {
        uint s = i * SUBGROUP + lane;
        maximums[i] = MASKED;
        sums[i] = 0;
        if (s >= args.splits) continue;
        float4 total = loadAligned<16>(from + s * (COLUMN_FOURS + 1));
        maximums[i] = total.x;
        sums[i] = total.y;
    }
    float sink = MASKED;
    if (args.sinks != nullptr)
        sink = args.sinks[split.headOf(r)] * LOG2_E;
    UNROLL for (uint i = 0; i < LANE_SPLITS; i++) maximum = max(maximum, maximums[i]);
    maximum = max(warpMax(maximum), sink);
    UNROLL for (uint i = 0; i < LANE_SPLITS; i++) sum += sums[i] * exp2(maximums[i] - maximum);
    sum = warpSum(sum) + (args.sinks != nullptr ? exp2(sink - maximum) : 0.0f);
    UNROLL for (uint i = 0; i < LANE_SPLITS; i++)
        splitWeights[r][i * SUBGROUP + lane] = exp2(maximums[i] - maximum) / sum;
}

/// The sums of a split for float4 i of the block's queries.
DEVICE float4 partialSum(ARGS, const KeySplit& split, uint i, uint s)
{
    float4* from = partialsOf(args, split, i / COLUMN_FOURS) + i % COLUMN_FOURS;
    return loadAligned<16>(from + s * (COLUMN_FOURS + 1));
}

/// Merges the splits of the block's queries if this block is the last one to finish.
DEVICE void mergeSplits(ARGS, const KeySplit& split, uint thread)
{
    if (args.splits == 1) return;
    uint* arrived = args.arrived + blockIdx.z * gridDim.y + blockIdx.y;
    if (!arrivesLast(arrived, args.splits, thread)) return;
    const uint fours = ROWS * COLUMN_FOURS;
    float4 ahead[AHEAD]; // sums of the thread's first float4, prefetched while weights are computed
    UNROLL for (uint s = 0; s < AHEAD; s++)
        ahead[s] = partialSum(args, split, min(thread, fours - 1), min(s, args.splits - 1));
    for (uint r = thread / SUBGROUP; r < ROWS; r += WAVES)
        findSplitWeights(args, split, r, thread % SUBGROUP);
    __syncthreads();
    for (uint i = thread; i < fours; i += THREADS)
    {
        const uint r = i / COLUMN_FOURS;
        float4 y = 0;
        UNROLL for (uint s = 0; s < AHEAD; s++)
        {
            if (s >= args.splits) break;
            y += splitWeights[r][s] * (i == thread ? ahead[s] : partialSum(args, split, i, s));
        }
        _Pragma("unroll 8") for (uint s = AHEAD; s < args.splits; s++)
            y += splitWeights[r][s] * partialSum(args, split, i, s);
        // The lanes of a block of columns have the same head.
        if (split.hasQuery(r))
            storeOutput(rowAt(args.out, split.tokenOf(r), args.out_stride), args.n_heads * HEAD_DIM_V,
                split.headOf(r) * HEAD_DIM_V + 4 * (i % COLUMN_FOURS), y);
    }
}
