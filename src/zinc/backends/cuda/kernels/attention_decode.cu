// Attention of one token of each sequence on tensor cores (decode). A block takes a split of the keys
// (grid.x) of one token (grid.z) for EACH heads, at most 8, that share a KV head (part of grid.y). A
// warp multiplies KEYS keys at once, 8 or 16.
// Keys and values go from memory straight to the registers of tensor core operands (mma.cuh): a
// product adds up over dimensions in any order, if both operands have the same one.
//   WAVES    warps of a block, each of which takes every WAVES-th group of keys
//   CLUSTER  if defined, the splits of a head, whose blocks form a cluster and merge their sums
//            through shared memory
//
// With g = lane / 4 and q = lane % 4, a lane has dimensions 32 c + 8 q to 32 c + 8 q + 7 of keys g
// and g + 8, and dimensions 64 c + 8 g to 64 c + 8 g + 7 of values 2 q, 2 q + 1, 2 q + 8, 2 q + 9.

#define THREADS (WAVES * SUBGROUP)
#define KEY_CHUNKS (HEAD_DIM / 32) // of a lane, for one key
#define VALUE_CHUNKS (HEAD_DIM_V / 64)
#define FOURS (EACH * HEAD_DIM_V / 4)
#define SUMS (WAVES * FOURS)
#define IS_WIDE (HEAD_DIM > 128) // queries do not fit into registers
#include "few_queries.cuh"
#include "mma.cuh"

SHARED float4 shared_floats[SUMS > HEADS_FLOAT4S ? SUMS : HEADS_FLOAT4S]; // heads, later sums
DEVICE float4 loadShared(uint i) { return shared_floats[i]; }
DEVICE void storeShared(uint i, float4 x) { shared_floats[i] = x; }
SHARED float2 totals[WAVES][EACH]; // maximum and sum of the softmax
#ifdef CLUSTER
#include "merge_cluster.cuh"
#else
#include "merge_splits.cuh"
#endif

/// The keys from position `at` on, which lie in one block. Past the last key a block has zeros or
/// old numbers, but no NaN.
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

    /// Replaces key `i` by that of the token itself.
    MEMBER void replace(uint i, uint g, uint q)
    {
        UNROLL for (uint t = 0; t < KEYS / 8; t++)
            UNROLL for (uint c = 0; c < KEY_CHUNKS; c++)
                if (8 * t + g == i) chunks[t][c] = own_chunks[4 * c + q];
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

    MEMBER void replace(uint i, uint g, uint q)
    {
        UNROLL for (uint k = 0; k < KEYS / 4; k++)
            UNROLL for (uint c = 0; c < VALUE_CHUNKS; c++)
                if (keyOf(k, q) == i) chunks[k][c] = own_chunks[OWN_VALUE + 8 * c + g];
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

/// The queries: a lane has dimensions 32 c + 8 q to 32 c + 8 q + 7 of head g. Those of wide heads do
/// not fit into registers.
struct Queries
{
#if IS_WIDE
    MEMBER void load(ARGS, KeySplit split, uint wave, uint lane)
    {
        for (uint i = wave; i < 2 * KEY_CHUNKS; i += WAVES)
            query_words[i][lane] = wordsOf(args, split, i, lane);
    }

    MEMBER uint2 words(uint i, uint lane) const { return query_words[i][lane]; }
#else
    uint2 own[2 * KEY_CHUNKS];

    MEMBER void load(ARGS, KeySplit split, uint wave, uint lane)
    {
        UNROLL for (uint i = 0; i < 2 * KEY_CHUNKS; i++) own[i] = wordsOf(args, split, i, lane);
    }

    MEMBER uint2 words(uint i, uint lane) const { return own[i]; }
#endif

    /// Half i % 2 of the dimensions of chunk i / 2.
    MEMBER static uint2 wordsOf(ARGS, KeySplit split, uint i, uint lane)
    {
        const uint head = min(lane / 4, EACH - 1);
        const uint first = 32 * (i / 2) + 8 * (lane % 4) + 4 * (i % 2);
        const float4 x = args.scale * split.queryFour(args, head, first);
        return uint2(packHalves(x.x, x.y), packHalves(x.z, x.w));
    }
};

/// What a warp has of the heads. A lane has the softmax of head g, over its keys, and sums of heads
/// 2 q and 2 q + 1.
struct WarpHeads
{
    Queries queries;
    float sums[4 * VALUE_CHUNKS][4];
    OnlineSoftmax running;

    MEMBER WarpHeads(ARGS, KeySplit split, uint wave, uint lane)
    {
        queries.load(args, split, wave, lane);
        UNROLL for (uint n = 0; n < 4 * VALUE_CHUNKS; n++)
            UNROLL for (uint i = 0; i < 4; i++) sums[n][i] = 0;
        running = emptySoftmax();
    }

    /// Scores keys: scores[t][i] is that of head g and key 8 t + 2 q + i. Others are not used.
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
                    const uint2 x = queries.words(2 * c + side, lane);
                    const uint a[4] = { x.x, 0, x.y, 0 };
                    multiplyTiles(scores[t], a, k[2 * side], k[2 * side + 1]);
                }
            }
        }
    }

    /// Turns scores of the keys from `at` on into weights of values, and scales the sums.
    MEMBER void weigh(ARGS, KeySplit split, uint at, uint q, float (&scores)[KEYS / 8][4])
    {
        float maximum = running.maximum;
        UNROLL for (uint t = 0; t < KEYS / 8; t++)
            UNROLL for (uint i = 0; i < 2; i++)
            {
                const uint key = at + 8 * t + 2 * q + i;
                const bool is_visible = key >= split.first && key < split.end;
                scores[t][i] = is_visible ? scaledScore(scores[t][i], args.softcap) : MASKED;
                maximum = max(maximum, scores[t][i]);
            }
        maximum = max(maximum, shuffleXor<4>(maximum, 1));
        maximum = max(maximum, shuffleXor<4>(maximum, 2));
        const float correction = exp2(running.maximum - maximum);
        running.maximum = maximum;
        running.sum *= correction;
        UNROLL for (uint t = 0; t < KEYS / 8; t++)
            UNROLL for (uint i = 0; i < 2; i++)
            {
                scores[t][i] = scores[t][i] > MASKED ? exp2(scores[t][i] - maximum) : 0.0f;
                running.sum += scores[t][i];
            }
        const float corrections[2] = { ofHead(correction, 2 * q), ofHead(correction, 2 * q + 1) };
        UNROLL for (uint n = 0; n < 4 * VALUE_CHUNKS; n++)
            UNROLL for (uint i = 0; i < 4; i++) sums[n][i] *= corrections[i % 2];
    }

    /// Adds values times their weights.
    MEMBER void add(const Values& values, const float (&weights)[KEYS / 8][4])
    {
        uint b[2] = { 0, 0 };
        UNROLL for (uint t = 0; t < KEYS / 8; t++) b[t] = packHalves(weights[t][0], weights[t][1]);
        UNROLL for (uint c = 0; c < VALUE_CHUNKS; c++)
        {
            uint4 v[4] = { 0, 0, 0, 0 };
            UNROLL for (uint k = 0; k < KEYS / 4; k++) v[k] = packHalves(values.chunks[k][c]);
            UNROLL for (uint m = 0; m < 4; m++)
            {
                const uint a[4] = { pairOf(v[0][m], v[1][m], 0), pairOf(v[0][m], v[1][m], 1),
                    pairOf(v[2][m], v[3][m], 0), pairOf(v[2][m], v[3][m], 1) };
                multiplyTiles(sums[4 * c + m], a, b[0], b[1]);
            }
        }
    }

    /// Leaves sums and totals of the warp in shared memory.
    MEMBER void share(uint wave, uint g, uint q)
    {
        running.sum += shuffleXor<4>(running.sum, 1);
        running.sum += shuffleXor<4>(running.sum, 2);
        if (q == 0 && g < EACH) totals[wave][g] = float2(running.maximum, running.sum);
        UNROLL for (uint i = 0; i < 2; i++)
        {
            const uint head = 2 * q + i;
            if (head >= EACH) continue;
            UNROLL for (uint c = 0; c < VALUE_CHUNKS; c++)
            {
                const uint first = head * HEAD_DIM_V + 64 * c + 8 * g;
                float4* to = shared_floats + wave * FOURS + first / 4;
                float(*from)[4] = sums + 4 * c;
                to[0] = float4(from[0][i], from[0][i + 2], from[1][i], from[1][i + 2]);
                to[1] = float4(from[2][i], from[2][i + 2], from[3][i], from[3][i + 2]);
            }
        }
    }

private:
    /// The number that the lanes of a head have.
    MEMBER static float ofHead(float x, uint head)
    {
        return __shfl_sync(0xffffffffu, x, int(4 * head));
    }
};

EARLY_KERNEL(attention_decode, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x, lane = thread % SUBGROUP, wave = thread / SUBGROUP;
    const uint g = lane / 4, q = lane % 4;
    KeySplit split = findSplit(args, group);
    if (!split.exists) return;
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
    HeadSource source = headSource(args, split, wave);
    Head own;
    own.loadWeights(source, lane);
    waitForInputs(); // earlier steps have written all keys but the token's own
    own.loadRow(source, lane);
    const bool is_last = prepareHeads(args, split, own, wave, lane);
    WarpHeads heads(args, split, wave, lane);
    __syncthreads(); // sums reuse the memory of the queries
    for (; at < split.end; at += WAVES * KEYS)
    {
        const uint next = min(at + WAVES * KEYS, (split.end - 1) / KEYS * KEYS);
        const bool has_own = is_last && split.position - at < KEYS;
        if (has_own) keys.replace(split.position - at, g, q);
        float weights[KEYS / 8][4];
        heads.score(keys, lane, weights);
        keys.load(args, split, next, g, q);
        heads.weigh(args, split, at, q, weights);
        if (has_own) values.replace(split.position - at, g, q);
        heads.add(values, weights);
        values.load(args, split, next, g, q);
    }
    heads.share(wave, g, q);
    __syncthreads();
#ifdef CLUSTER
    awaitMailboxes();
#endif
    for (uint i = thread; i < FOURS; i += THREADS)
    {
        const uint r = 4 * i / HEAD_DIM_V;
        OnlineSoftmax all = { totals[0][r].x, totals[0][r].y };
        float4 y = shared_floats[i];
        UNROLL for (uint w = 1; w < WAVES; w++)
        {
            const OnlineSoftmax other = { totals[w][r].x, totals[w][r].y };
            const float2 correction = mergeInto(all, other);
            y = y * correction.x + shared_floats[w * FOURS + i] * correction.y;
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
