// select_keys: the positions of the top_k largest scores of a token (group.x), in ascending order. If
// scores are equal, the first position wins. A radix select finds the bits of the smallest selected
// score, some bits in each pass over the scores. Then each warp counts the selected positions of a part
// of the scores, and stores them after those of the warps before it.

#include "arguments.h"

using Arguments = SelectKeysArguments;

#include "step.cuh"
#include "floats.cuh"

#define WARPS (THREADS / SUBGROUP)
#define BINS 2048 // values that the bits of one pass can have
#define BINS_EACH (BINS / THREADS)
#define STRIDE (4 * SUBGROUP) // scores that a warp loads at once

SHARED uint bins[BINS];
SHARED uint waveSums[WARPS], waveEquals[WARPS];
SHARED uint chosen, passed; // the bin of the smallest selected score, and scores in larger bins

/// Converts a score to an integer with the same order, for which -0 is 0 and NaN is -infinity.
DEVICE uint orderedBits(float x)
{
    const uint bits = asuint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x007fffffu;
    if (bits == 0x80000000u) return bits;
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Counts the scores whose bits outside of the lowest `shift` + `width` are those of `known`, by the
/// `width` bits above the lowest `shift`.
DEVICE void countScores(const float* scores, uint n, uint known, uint shift, uint width, uint thread)
{
    const uint end = shift + width;
    const uint mask = end < 32 ? 0xffffffffu << end : 0;
    for (uint i = thread; i < BINS; i += THREADS) bins[i] = 0;
    __syncthreads();
    _Pragma("unroll 4") for (uint at = 4 * thread; at < n; at += 4 * THREADS)
    {
        const float4 x = loadAligned<16>((float4*)(scores + at));
        UNROLL for (uint i = 0; i < 4; i++)
        {
            const uint bits = orderedBits(x[i]);
            if (at + i < n && (bits & mask) == known)
                atomicAdd(&bins[bits >> shift & ((1u << width) - 1)], 1u);
        }
    }
    __syncthreads();
}

/// Finds the bin of the `rank`-th largest score that is counted.
DEVICE void findBin(uint rank, uint thread)
{
    const uint warp = thread / SUBGROUP, lane = thread % SUBGROUP;
    uint own = 0;
    UNROLL for (uint i = 0; i < BINS_EACH; i++) own += bins[BINS - 1 - (thread * BINS_EACH + i)];
    uint before = warpPrefixSum(own);
    if (lane == SUBGROUP - 1) waveSums[warp] = before + own;
    __syncthreads();
    for (uint w = 0; w < warp; w++) before += waveSums[w];
    if (before < rank && rank <= before + own)
    {
        uint bin = BINS - 1 - thread * BINS_EACH;
        while (before + bins[bin] < rank) before += bins[bin--];
        chosen = bin;
        passed = before;
    }
    __syncthreads();
}

KERNEL(select_keys, Arguments)
{
    const uint thread = threadIdx.x, warp = thread / SUBGROUP, lane = thread % SUBGROUP;
    const uint token = args.first + blockIdx.x, top_k = args.top_k;
    if (args.is_one_token == 0 && token >= args.step->tokens) return;
    const uint n = positionOf(args.step, token) + 1;
    float* out = (float*)rowAt(args.out, token, args.out_stride);
    if (n <= top_k)
    {
        for (uint i = thread; i < top_k; i += THREADS) out[i] = i < n ? float(i) : -1.0f;
        return;
    }
    const float* scores = args.scores + uint64_t(blockIdx.x) * args.scores_stride;

    uint least = 0, rank = top_k; // bits of the smallest selected score; how many have these bits
    UNROLL for (uint pass = 0; pass < 3; pass++)
    {
        const uint shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, width = pass == 2 ? 10 : 11;
        countScores(scores, n, least, shift, width, thread);
        findBin(rank, thread);
        least |= chosen << shift;
        rank -= passed;
    }

    // Scores larger than the smallest selected one, and equal ones, in the parts of earlier warps.
    const uint each = (n + WARPS * STRIDE - 1) / (WARPS * STRIDE) * STRIDE;
    const uint begin = warp * each + 4 * lane, end = min((warp + 1) * each, n);
    uint larger = 0, equal = 0;
    _Pragma("unroll 4") for (uint at = begin; at < end; at += STRIDE)
    {
        const float4 x = loadAligned<16>((float4*)(scores + at));
        UNROLL for (uint i = 0; i < 4; i++)
        {
            const uint bits = orderedBits(x[i]);
            if (at + i < end && bits > least) larger++;
            if (at + i < end && bits == least) equal++;
        }
    }
    const uint larger_before = warpPrefixSum(larger), equal_before = warpPrefixSum(equal);
    if (lane == SUBGROUP - 1)
    {
        waveSums[warp] = larger_before + larger;
        waveEquals[warp] = equal_before + equal;
    }
    __syncthreads();
    uint n_larger = 0, n_equal = 0;
    for (uint w = 0; w < warp; w++)
    {
        n_larger += waveSums[w];
        n_equal += waveEquals[w];
    }
    for (uint from = warp * each; from < end; from += STRIDE)
    {
        const uint at = from + 4 * lane;
        float4 x = 0;
        if (at < end) x = loadAligned<16>((float4*)(scores + at));
        uint bits[4], counts = 0; // lower half: larger scores, upper half: equal scores
        UNROLL for (uint i = 0; i < 4; i++)
        {
            bits[i] = at + i < end ? orderedBits(x[i]) : 0;
            counts += bits[i] > least ? 1u : bits[i] == least ? 1u << 16 : 0u;
        }
        const uint before = warpPrefixSum(counts);
        uint l = n_larger + (before & 0xffffu), e = n_equal + (before >> 16);
        UNROLL for (uint i = 0; i < 4; i++)
        {
            const bool is_equal = bits[i] == least;
            if (bits[i] > least || (is_equal && e < rank)) out[l + min(e, rank)] = float(at + i);
            if (bits[i] > least) l++;
            if (is_equal) e++;
        }
        const uint all = __shfl_sync(0xffffffffu, before + counts, SUBGROUP - 1);
        n_larger += all & 0xffffu;
        n_equal += all >> 16;
    }
}
