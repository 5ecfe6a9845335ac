// Online softmax of the tiles of query_tile.cuh, over scores in the layout of tensor core sums
// (mma.cuh).

#pragma once

#include "mma_tile.cuh"
#include "query_tile.cuh"

/// Returns the index of this thread. The compiler recomputes values that depend on it where they
/// are used, instead of keeping them in registers across a tile.
DEVICE uint threadIndex()
{
#ifdef ZINC_EMULATED
    return threadIdx.x;
#else
    uint index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
#endif
}

/// Two rows of a tile. A lane holds columns 2c and 2c + 1 of every eight columns.
struct RowPair
{
    float maximum[2], total[2]; // totals are over the columns of this lane
    uint position[2];
#if ALIBI
    float slope[2];
#endif
    uint row; // first of the two rows; the second is 8 rows later

    MEMBER void load(ARGS, QueryTile& t, uint first)
    {
        row = first;
        UNROLL for (uint h = 0; h < 2; h++)
        {
            position[h] = t.positionOf(row + 8 * h);
#if ALIBI
            slope[h] = args.slopes[t.headOf(row + 8 * h)] * LOG2_E;
#endif
            maximum[h] = MASKED;
            total[h] = 0;
        }
    }

    /// Returns the factor of queries. Without softcap, it turns scores into exponents of 2, for exp2.
    MEMBER static float queryScale(ARGS) { return SOFTCAP ? args.scale : args.scale * LOG2_E; }

    /// Loads the operands of 16 rows of queries, starting at dimension `col`.
    template <uint STEPS> MEMBER void loadQueries(ARGS, QueryTile& t, uint col, uint (&queries)[STEPS][4])
    {
        float scale = queryScale(args);
        UNROLL for (uint h = 0; h < 2; h++)
        {
            float* q = t.queryRow(args, row + 8 * h) + col + 2 * (threadIdx.x % 4);
            UNROLL for (uint k = 0; k < STEPS; k++)
                UNROLL for (uint side = 0; side < 2; side++)
                {
                    float2 x = loadPair(q + 16 * k + 8 * side);
                    queries[k][2 * side + h] = packHalves(x.x * scale, x.y * scale);
                }
        }
    }

    MEMBER static float2 loadPair(float* p)
    {
#if VECTORS
        return loadAligned<8>((float2*)p);
#else
        return float2(p[0], p[1]);
#endif
    }

    /// Applies the online softmax: turns scores of the keys starting at position `first` into weights
    /// of the values. The caller must multiply earlier sums by `corrections`. Returns whether any of
    /// these factors is not 1.
    template <uint N>
    MEMBER bool weigh(ARGS, QueryTile& t, uint first, float (&scores)[N][4], float (&corrections)[2])
    {
        uint key = first + 2 * (threadIdx.x % 4);
#if SOFTCAP
        UNROLL for (uint n = 0; n < N; n++)
            UNROLL for (uint i = 0; i < 4; i++)
                scores[n][i] = scaledScore(scores[n][i], args.softcap);
#endif
#if ALIBI
        UNROLL for (uint n = 0; n < N; n++)
            UNROLL for (uint i = 0; i < 4; i++)
            {
                int distance = int(key + 8 * n + i % 2) - int(position[i / 2]);
                scores[n][i] -= slope[i / 2] * abs(float(distance));
            }
#endif
        uint low[2], high[2]; // keys that the rows see
        UNROLL for (uint h = 0; h < 2; h++)
        {
            low[h] = t.firstOf(args, position[h]);
            high[h] = t.lastOf(args, position[h]);
        }
        if (first < low[1] || first + (8 * N - 1) > high[0])
        {
            UNROLL for (uint n = 0; n < N; n++)
                UNROLL for (uint i = 0; i < 4; i++)
                {
                    uint at = key + 8 * n + i % 2;
                    if (at < low[i / 2] || at > high[i / 2]) scores[n][i] = MASKED;
                }
        }
        UNROLL for (uint h = 0; h < 2; h++)
        {
            float top = maximum[h];
            UNROLL for (uint n = 0; n < N; n++)
                top = max(top, max(scores[n][2 * h], scores[n][2 * h + 1]));
            top = max(top, shuffleXor(top, 1));
            top = max(top, shuffleXor(top, 2));
            corrections[h] = exp2Fast(maximum[h] - top);
            maximum[h] = top;
            float base = top > MASKED ? top : 0.0f; // no key was visible yet: all weights are 0
            total[h] *= corrections[h];
            UNROLL for (uint n = 0; n < N; n++)
                UNROLL for (uint i = 2 * h; i < 2 * h + 2; i++)
                {
                    scores[n][i] = exp2Fast(scores[n][i] - base);
                    total[h] += scores[n][i];
                }
        }
        return corrections[0] != 1.0f || corrections[1] != 1.0f;
    }

    /// Adds up the totals of the lanes that share the rows.
    MEMBER void sumTotals()
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            total[h] += shuffleXor(total[h], 1);
            total[h] += shuffleXor(total[h], 2);
        }
    }
};

#if SPLIT
/// The partial sums of row r over the split of the block.
DEVICE float* partialRow(ARGS, QueryTile& t, uint r)
{
    uint at = (t.tokenOf(r) * args.n_heads + t.headOf(r)) * args.splits + blockIdx.z;
    return (float*)args.partial + uint64_t(at) * (HEAD_DIM_V + 4);
}

/// Stores maximum and total of the softmax of row r, which follow its sums.
DEVICE void storeTotals(ARGS, QueryTile& t, uint r, OnlineSoftmax all)
{
    float* to = partialRow(args, t, r) + HEAD_DIM_V;
    storeAligned<16>((float4*)to, float4(all.maximum, all.sum, 0, 0));
}
#endif

/// Stores columns `first` to `first` + 8 N - 1 of the output of row r, or of its sums if keys are
/// split. A lane passes its two columns of every eight.
template <uint N>
DEVICE void storeColumns(ARGS, QueryTile& t, uint r, uint first, const float (&pairs)[N][2])
{
    uint c = threadIdx.x % 4;
#if SPLIT
    float* y = partialRow(args, t, r) + first;
#else
    uint8_t* out = rowAt(args.out, t.tokenOf(r), args.out_stride);
    uint col = t.headOf(r) * HEAD_DIM_V + first;
    float* y = (float*)out + col;
#endif
#if Q8 && !SPLIT
    UNROLL for (uint n = 0; n < N; n += 4)
        storeQ8Quad(out, args.n_heads * HEAD_DIM_V, col + 8 * n, &pairs[n], c);
#else
    UNROLL for (uint n = 0; n < N; n++)
    {
        float* to = y + 8 * n + 2 * c;
#if VECTORS || SPLIT
        storeAligned<8>((float2*)to, float2(pairs[n][0], pairs[n][1]));
#else
        to[0] = pairs[n][0];
        to[1] = pairs[n][1];
#endif
    }
#endif
}

/// Tiles of the keys of a block, or of its split of them.
struct KeyRange
{
    uint begin, end; // positions, multiples of BK

    MEMBER KeyRange(ARGS, QueryTile& t)
    {
        uint first = t.first / BK, n = t.last / BK + 1 - first, index = SPLIT ? blockIdx.z : 0;
        uint splits = SPLIT ? args.splits : 1, each = n / splits, longer = n % splits;
        begin = (first + index * each + min(index, longer)) * BK;
        end = begin + (each + (index < longer ? 1 : 0)) * BK;
    }
};
