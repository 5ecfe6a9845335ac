// Attention of few tokens on tensor cores (decode, and verification of drafts). A block takes a split
// of the keys (grid.x) of one token or a tile of tokens (grid.z) for EACH heads that share a KV head
// (part of grid.y). A block has 8 queries, or 16 if heads are at most 128 wide. A warp multiplies
// KEYS keys at once, 8 or 16.
// Keys and values are loaded from memory straight into operands of tensor cores (mma.cuh). This works
// because a dot product may sum dimensions in any order that both operands share.
//   WAVES    warps per block, each of which takes every WAVES-th group of keys
//   CLUSTER  splits of a head; their blocks form a cluster and merge their sums through shared
//            memory. Undefined if splits are merged in another way
//
// With g = lane / 4 and q = lane % 4, a lane holds dimensions 32 c + 8 q to 32 c + 8 q + 7 of keys g
// and g + 8, and dimensions 64 c + 8 g to 64 c + 8 g + 7 of values 2 q, 2 q + 1, 2 q + 8, 2 q + 9.

#define THREADS (WAVES * SUBGROUP)
#define KEY_CHUNKS (HEAD_DIM / 32) // chunks of one key per lane
#define VALUE_CHUNKS (HEAD_DIM_V / 64)
#define FOURS (ROWS * HEAD_DIM_V / 4)
#define SUMS (WAVES * FOURS)
#define GROUPS ((ROWS + 7) / 8) // groups of 8 queries
#define IS_WIDE (HEAD_DIM > 128) // queries do not fit into registers
#include "few_queries.cuh"
#include "mma.cuh"

DYNAMIC_SHARED(sharedBytes, 16 * (SUMS > HEADS_FLOAT4S ? SUMS : HEADS_FLOAT4S)); // heads, later sums
DEVICE float4& sharedFour(uint i) { return ((float4*)sharedBytes)[i]; }
DEVICE float4 loadShared(uint i) { return sharedFour(i); }
DEVICE void storeShared(uint i, float4 x) { sharedFour(i) = x; }
SHARED float2 totals[WAVES][ROWS]; // maximum and sum of the softmax
#ifdef CLUSTER
#include "merge_cluster.cuh"
#else
#include "merge_splits.cuh"
#endif

/// KEYS keys of one block, starting at position `at`. Past the last key, a block holds zeros or stale
/// numbers, never NaN.
struct Keys
{
    Chunk chunks[KEYS / 8][KEY_CHUNKS];

    MEMBER void load(ARGS, KeySplit split, uint at, uint g, uint q)
    {
        Plane plane = split.keysOf(args, split.blockAt(args, at));
        Chunks from = plane.chunksFrom(split.inBlock(args, at) + g, q, HEAD_DIM);
        UNROLL for (uint t = 0; t < KEYS / 8; t++)
            UNROLL for (uint c = 0; c < KEY_CHUNKS; c++)
                chunks[t][c] = from.at(8 * t, 4 * c, HEAD_DIM);
    }

    /// Replaces the keys of tokens of this step with those in shared memory. `at` is the position of
    /// the first key.
    MEMBER void replace(const KeySplit& split, uint at, uint g, uint q)
    {
        UNROLL for (uint t = 0; t < KEYS / 8; t++)
        {
            const uint i = at + 8 * t + g - split.ownPosition(); // wraps around before the first token
            UNROLL for (uint c = 0; c < KEY_CHUNKS; c++)
                if (i < split.end - split.ownPosition())
                    chunks[t][c] = own_chunks[i * OWN_CHUNKS + 4 * c + q];
        }
    }
};

/// The values of the same positions.
struct Values
{
    Chunk chunks[KEYS / 4][VALUE_CHUNKS];

    /// The position of value k of a lane.
    MEMBER static uint keyOf(uint k, uint q) { return k / 2 * 8 + 2 * q + k % 2; }

    MEMBER void load(ARGS, KeySplit split, uint at, uint g, uint q)
    {
        Plane plane = split.valuesOf(args, split.blockAt(args, at));
        Chunks from = plane.chunksFrom(split.inBlock(args, at) + 2 * q, g, HEAD_DIM_V);
        UNROLL for (uint k = 0; k < KEYS / 4; k++)
            UNROLL for (uint c = 0; c < VALUE_CHUNKS; c++)
                chunks[k][c] = from.at(keyOf(k, 0), 8 * c, HEAD_DIM_V);
    }

    MEMBER void replace(const KeySplit& split, uint at, uint g, uint q)
    {
        UNROLL for (uint k = 0; k < KEYS / 4; k++)
        {
            const uint i = at + keyOf(k, q) - split.ownPosition();
            UNROLL for (uint c = 0; c < VALUE_CHUNKS; c++)
                if (i < split.end - split.ownPosition())
                    chunks[k][c] = own_chunks[i * OWN_CHUNKS + OWN_VALUE + 8 * c + g];
        }
    }
};

/// The low (0) or high (1) halves of two words.
DEVICE uint pairOf(uint a, uint b, uint half)
{
    return half == 0 ? (a & 0xffffu) | b << 16 : a >> 16 | (b & 0xffff0000u);
}

#if IS_WIDE
SHARED uint2 query_words[2 * KEY_CHUNKS][SUBGROUP];
#endif

/// The queries: a lane has dimensions 32 c + 8 q to 32 c + 8 q + 7 of query g of each group.
/// Queries of wide heads do not fit into registers and stay in shared memory.
struct Queries
{
#if IS_WIDE
    static_assert(GROUPS == 1);

    MEMBER void load(ARGS, KeySplit split, uint wave, uint lane)
    {
        for (uint i = wave; i < 2 * KEY_CHUNKS; i += WAVES)
            query_words[i][lane] = wordsOf(args, split, 0, i, lane);
    }

    MEMBER uint2 words(uint group, uint i, uint lane) const { return query_words[i][lane]; }
#else
    uint2 own[GROUPS][2 * KEY_CHUNKS];

    MEMBER void load(ARGS, KeySplit split, uint wave, uint lane)
    {
        UNROLL for (uint h = 0; h < GROUPS; h++)
            UNROLL for (uint i = 0; i < 2 * KEY_CHUNKS; i++)
                own[h][i] = wordsOf(args, split, h, i, lane);
    }

    MEMBER uint2 words(uint group, uint i, uint lane) const { return own[group][i]; }
#endif

    /// Half i % 2 of the dimensions of chunk i / 2.
    MEMBER static uint2 wordsOf(ARGS, KeySplit split, uint group, uint i, uint lane)
    {
        const uint r = min(8 * group + lane / 4, ROWS - 1);
        const uint first = 32 * (i / 2) + 8 * (lane % 4) + 4 * (i % 2);
        const float4 x = args.scale * split.queryFour(args, r, first);
        return uint2(packHalves(x.x, x.y), packHalves(x.z, x.w));
    }
};

/// A warp's queries with their running softmax and sums. A lane holds the softmax of query g of each
/// group, over the lane's keys, and the sums of queries 2 q and 2 q + 1.
struct WarpQueries
{
    Queries queries;
    float sums[GROUPS][4 * VALUE_CHUNKS][4];
    OnlineSoftmax running[GROUPS];
    uint first[GROUPS], last[GROUPS]; // positions that query g of a group sees

    MEMBER WarpQueries(ARGS, KeySplit split, uint wave, uint lane)
    {
        queries.load(args, split, wave, lane);
        UNROLL for (uint h = 0; h < GROUPS; h++)
        {
            UNROLL for (uint n = 0; n < 4 * VALUE_CHUNKS; n++)
                UNROLL for (uint i = 0; i < 4; i++) sums[h][n][i] = 0;
            running[h] = emptySoftmax();
            last[h] = split.positionOf(8 * h + lane / 4);
            first[h] = HAS_TILES ? split.firstKey(args, last[h]) : split.first;
        }
    }

    /// Scores keys: scores[t][2 h + i] is that of query g of group h and key 8 t + 2 q + i.
    MEMBER void score(const Keys& keys, uint lane, float (&scores)[KEYS / 8][4]) const
    {
        UNROLL for (uint t = 0; t < KEYS / 8; t++)
        {
            UNROLL for (uint i = 0; i < 4; i++) scores[t][i] = 0;
            UNROLL for (uint c = 0; c < KEY_CHUNKS; c++)
            {
                const uint4 k = packHalves(keys.chunks[t][c]);
                UNROLL for (uint side = 0; side < 2; side++)
                {
                    uint a[4] = {};
                    UNROLL for (uint h = 0; h < GROUPS; h++)
                    {
                        const uint2 x = queries.words(h, 2 * c + side, lane);
                        a[h] = x.x;
                        a[h + 2] = x.y;
                    }
                    multiplyTiles(scores[t], a, k[2 * side], k[2 * side + 1]);
                }
            }
        }
    }

    /// Applies the online softmax: turns scores of the keys starting at `at` into weights of the
    /// values, and rescales the sums.
    MEMBER void weigh(ARGS, KeySplit split, uint at, uint q, float (&scores)[KEYS / 8][4])
    {
        UNROLL for (uint h = 0; h < GROUPS; h++)
        {
            float maximum = running[h].maximum;
            UNROLL for (uint t = 0; t < KEYS / 8; t++)
                UNROLL for (uint i = 0; i < 2; i++)
                {
                    const uint key = at + 8 * t + 2 * q + i;
                    const bool is_visible
                        = key >= first[h] && key < split.end && (!HAS_TILES || key <= last[h]);
                    float& x = scores[t][2 * h + i];
                    x = is_visible ? scaledScore(x, args.softcap) : MASKED;
                    maximum = max(maximum, x);
                }
            maximum = max(maximum, shuffleXor(maximum, 1));
            maximum = max(maximum, shuffleXor(maximum, 2));
            const float correction = exp2(running[h].maximum - maximum);
            running[h].maximum = maximum;
            running[h].sum *= correction;
            UNROLL for (uint t = 0; t < KEYS / 8; t++)
                UNROLL for (uint i = 0; i < 2; i++)
                {
                    float& x = scores[t][2 * h + i];
                    x = x > MASKED ? exp2(x - maximum) : 0.0f;
                    running[h].sum += x;
                }
            const float corrections[2]
                = { ofQuery(correction, 2 * q), ofQuery(correction, 2 * q + 1) };
            UNROLL for (uint n = 0; n < 4 * VALUE_CHUNKS; n++)
                UNROLL for (uint i = 0; i < 4; i++) sums[h][n][i] *= corrections[i % 2];
        }
    }

    /// Adds values times their weights.
    MEMBER void add(const Values& values, const float (&weights)[KEYS / 8][4])
    {
        uint b[GROUPS][2] = {};
        UNROLL for (uint h = 0; h < GROUPS; h++)
            UNROLL for (uint t = 0; t < KEYS / 8; t++)
                b[h][t] = packHalves(weights[t][2 * h], weights[t][2 * h + 1]);
        UNROLL for (uint c = 0; c < VALUE_CHUNKS; c++)
        {
            uint4 v[4] = { 0, 0, 0, 0 };
            UNROLL for (uint k = 0; k < KEYS / 4; k++) v[k] = packHalves(values.chunks[k][c]);
            UNROLL for (uint m = 0; m < 4; m++)
            {
                const uint a[4] = { pairOf(v[0][m], v[1][m], 0), pairOf(v[0][m], v[1][m], 1),
                    pairOf(v[2][m], v[3][m], 0), pairOf(v[2][m], v[3][m], 1) };
                UNROLL for (uint h = 0; h < GROUPS; h++)
                    multiplyTiles(sums[h][4 * c + m], a, b[h][0], b[h][1]);
            }
        }
    }

    /// Writes the sums of the warp, and the maximum and sum of its softmax, to shared memory.
    MEMBER void share(uint wave, uint g, uint q)
    {
        UNROLL for (uint h = 0; h < GROUPS; h++)
        {
            OnlineSoftmax& own = running[h];
            own.sum += shuffleXor(own.sum, 1);
            own.sum += shuffleXor(own.sum, 2);
            if (q == 0 && 8 * h + g < ROWS) totals[wave][8 * h + g] = float2(own.maximum, own.sum);
            UNROLL for (uint i = 0; i < 2; i++)
            {
                const uint r = 8 * h + 2 * q + i;
                if (r >= ROWS) continue;
                UNROLL for (uint c = 0; c < VALUE_CHUNKS; c++)
                {
                    const uint first = r * HEAD_DIM_V + 64 * c + 8 * g;
                    float4* to = &sharedFour(wave * FOURS + first / 4);
                    float(*from)[4] = sums[h] + 4 * c;
                    to[0] = float4(from[0][i], from[0][i + 2], from[1][i], from[1][i + 2]);
                    to[1] = float4(from[2][i], from[2][i + 2], from[3][i], from[3][i + 2]);
                }
            }
        }
    }

private:
    /// Returns the `x` of a lane that holds the softmax of query r of a group.
    MEMBER static float ofQuery(float x, uint r) { return __shfl_sync(0xffffffffu, x, int(4 * r)); }
};

EARLY_KERNEL(attention_decode, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x, lane = thread % SUBGROUP, wave = thread / SUBGROUP;
    const uint g = lane / 4, q = lane % 4;
    KeySplit split = findSplit(args, group);
    if (!split.exists) return waitForInputs();
#ifdef CLUSTER
    openShare(thread);
#endif
    split.findKeys(args, KEYS);
    uint at = split.begin + wave * KEYS;
    Keys keys;
    Values values;
    if (at < split.end)
    {
        keys.load(args, split, at, g, q);
        values.load(args, split, at, g, q);
    }
    OwnHeads own(split);
    own.loadWeights(args, split, wave, lane);
    waitForInputs(); // earlier steps have written all keys but those of this step
    own.loadRows(args, split, wave, lane);
    own.prepare(args, split, wave, lane);
    WarpQueries queries(args, split, wave, lane);
    __syncthreads(); // sums reuse the memory of the queries
    for (; at < split.end; at += WAVES * KEYS)
    {
        const uint next = min(at + WAVES * KEYS, (split.end - 1) / KEYS * KEYS);
#if IS_WIDE
        // Otherwise the compiler loads all queries to registers before the loop, and spills on sm_100.
        asm volatile("" ::: "memory");
#endif
        const bool has_own = own.has_keys && at + KEYS > split.ownPosition();
        if (has_own) keys.replace(split, at, g, q);
        float weights[KEYS / 8][4];
        queries.score(keys, lane, weights);
        keys.load(args, split, next, g, q);
        queries.weigh(args, split, at, q, weights);
        if (has_own) values.replace(split, at, g, q);
        queries.add(values, weights);
        values.load(args, split, next, g, q);
    }
    queries.share(wave, g, q);
    __syncthreads();
#ifdef CLUSTER
    awaitMailboxes();
#endif
    for (uint i = thread; i < FOURS; i += THREADS)
    {
        const uint r = 4 * i / HEAD_DIM_V;
        OnlineSoftmax all = { totals[0][r].x, totals[0][r].y };
        float4 y = sharedFour(i);
        UNROLL for (uint w = 1; w < WAVES; w++)
        {
            const OnlineSoftmax other = { totals[w][r].x, totals[w][r].y };
            const float2 correction = mergeInto(all, other);
            y = y * correction.x + sharedFour(w * FOURS + i) * correction.y;
        }
#ifdef CLUSTER
        sendSums(i, y, all);
#else
        split.store(args, r, 4 * i % HEAD_DIM_V, y, all);
#endif
    }
#ifdef CLUSTER
    mergeShare(args, split, thread);
#else
    mergeSplits(args, split, thread);
#endif
}
