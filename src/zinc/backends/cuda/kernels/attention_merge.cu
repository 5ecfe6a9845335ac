// Merges the partial sums of a head (group.x) of a token (group.y). A thread adds up four columns of
// every PARTS-th split.
//   COLUMNS  columns of a head that a block (group.z) merges; all of them if undefined

#include "arguments.h"

using Arguments = AttentionMergeArguments;

#include "step.cuh"
#include "floats.cuh"
#include "q8.cuh"
#include "softmax.cuh"

#ifndef COLUMNS
#define COLUMNS HEAD_DIM_V
#endif
#define FOURS (COLUMNS / 4)
#define SPLIT_FOURS (HEAD_DIM_V / 4 + 1) // sums, then maximum and sum of the softmax

SHARED float4 sums[PARTS][FOURS];
SHARED float2 totals[PARTS];

#define THREADS (PARTS * FOURS)

KERNEL(attention_merge, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint head = group.x, token = group.y, i = thread % FOURS, part = thread / FOURS;
    uint first = group.z * FOURS;
    if (token >= rowsOf(args.step, args.dim)) return;
    float4* from = (float4*)args.partial + (token * args.n_heads + head) * args.splits * SPLIT_FOURS;

    OnlineSoftmax all = emptySoftmax();
    float4 y = 0;
    _Pragma("unroll 4") for (uint s = part; s < args.splits; s += PARTS)
    {
        float4 total = loadAligned<16>(from + (s * SPLIT_FOURS + HEAD_DIM_V / 4));
        float4 x = loadAligned<16>(from + (s * SPLIT_FOURS + first + i));
        OnlineSoftmax other = { total.x, total.y };
        float2 correction = mergeInto(all, other);
        y = y * correction.x + x * correction.y;
    }
    sums[part][i] = y;
    if (i == 0) totals[part] = float2(all.maximum, all.sum);
    __syncthreads();
    if (part > 0) return;
    UNROLL for (uint p = 1; p < PARTS; p++)
    {
        OnlineSoftmax other = { totals[p].x, totals[p].y };
        float2 correction = mergeInto(all, other);
        y = y * correction.x + sums[p][i] * correction.y;
    }
    if (args.sinks != nullptr)
    {
        OnlineSoftmax sink = { args.sinks[head] * LOG2_E, 1.0f };
        y *= mergeInto(all, sink).x;
    }
    storeOutput(rowAt(args.out, token, args.out_stride), args.n_heads * HEAD_DIM_V,
             head * HEAD_DIM_V + 4 * (first + i), y / all.sum);
}
