// The part of attention that the kernels for few queries share. A workgroup takes one split of the
// keys (group.x) of one token (group.z), for EACH heads that share a KV head (part of group.y).
// Each split leaves partial sums for attention_merge; a token with one split is finished
// here.
//   ALIBI     scores fall with the distance of query and key, by a slope of each head
//   CHUNKED   a token sees the keys from the last multiple of the window on
//   PREPARES  heads of q, k and v come as the projections made them. Each workgroup normalises and
//             rotates the heads that it needs, and the workgroups of the last split store key and
//             value in the cache. No other workgroup of this step reads them there. The last
//             workgroup to end merges the splits of its heads (merge_splits.cuh), or a cluster of
//             workgroups does (merge_cluster.cuh).
//   SELECTED  a token sees the positions in its row of `selected` only, of which a split has some
//   ONE_TOKEN with PREPARES the step has one token, else one of each sequence

#include "arguments.h"

#ifndef ALIBI
#define ALIBI 0
#endif
#ifndef CHUNKED
#define CHUNKED 0
#endif
#ifndef ONE_TOKEN
#define ONE_TOKEN 0
#endif
#ifndef SELECTED
#define SELECTED 0
#endif

#if PREPARES
using Arguments = DecodeAttentionArguments;
#elif SELECTED
using Arguments = SelectedAttentionArguments;
#else
using Arguments = AttentionArguments;
#endif

#include "step.cuh"
#include "floats.cuh"
#include "kv.cuh"
#include "q8.cuh"
#include "softmax.cuh"

#if PREPARES
#define OWN_VALUE (V_FROM_K ? SKIP_V : HEAD_DIM / 8)
#define HEADS_FLOAT4S ((EACH + 2) * HEAD_FLOAT4S) // queries, key, value
#include "heads.cuh"
// The key of the token itself, and from OWN_VALUE on its value.
SHARED Chunk own_chunks[(HEAD_DIM + HEAD_DIM_V) / 8];
#endif

/// A part of the keys that one token sees, for some heads of one KV head.
struct KeySplit
{
    uint token, index;
    uint first_head, n_heads;
    uint kv_head, part; // which EACH of the heads of the KV head
    uint position, first; // of the token, and of the first key that it sees
    uint begin, end; // positions of the split's keys, with SELECTED their indices in the selection
#if SELECTED
    const float* selected; // positions
#endif
    int* blocks; // the sequence's block table
    uint8_t* keys; // of the KV head, in block 0
    uint8_t* values;
    bool exists;

    MEMBER uint blockTokens(ARGS) { return 1u << args.block_shift; }
    MEMBER uint inBlock(ARGS, uint position) { return position & (blockTokens(args) - 1); }
    MEMBER uint blockAt(ARGS, uint position) { return blocks[position >> args.block_shift]; }

    MEMBER Plane keysOf(ARGS, uint block)
    {
        return { keys + uint64_t(block) * args.key_block, blockTokens(args) };
    }

    MEMBER Plane valuesOf(ARGS, uint block)
    {
        return { values + uint64_t(block) * args.value_block, blockTokens(args) };
    }

    /// The row of query r before it is prepared.
    MEMBER uint8_t* query(ARGS, uint r)
    {
        uint head = first_head + min(r, n_heads - 1);
        return rowAt(args.q, token, args.q_stride) + 4 * head * HEAD_DIM;
    }

    /// Four columns of query r as it is scored.
    MEMBER float4 queryFour(ARGS, uint r, uint col)
    {
#if PREPARES
        return headFour(r, col / 4);
#else
        return loadFour(query(args, r), HEAD_DIM, col);
#endif
    }

    /// The score of query r for the key at a position, as a power of two. `dot` is their product.
    MEMBER float scored(ARGS, float dot, uint r, uint key)
    {
        float score = scaledScore(dot, args.softcap);
#if ALIBI
        float slope = args.slopes[first_head + min(r, n_heads - 1)] * LOG2_E;
        score -= slope * abs(float(int(key) - int(position)));
#endif
        return score;
    }

    /// The first key that the token at a position sees.
    MEMBER uint firstKey(ARGS, uint position)
    {
#if CHUNKED
        return position / args.window * args.window;
#else
        return args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
#endif
    }

    /// Finds the keys of the split. It starts at a multiple of `keys` positions, and the lengths of
    /// two splits differ by at most `keys`.
    MEMBER void findKeys(ARGS, uint keys)
    {
        uint sequence = 0, table = args.block_table;
        if (PREPARES) sequence = token; // each sequence has one token
        else if (args.is_one_token == 0) sequence = args.step->sequence[token];
        position = positionOf(args.step, token);
        blocks = args.step->tables[table] + sequence * args.step->table_stride[table];
        first = firstKey(args, position);
        uint start = first / keys * keys;
        begin = start;
        uint last = position;
#if !PREPARES
        if (args.bidirectional != 0 && args.is_one_token == 0)
            last = positionOf(args.step, args.step->seq_start[sequence + 1] - 1);
        if (args.bidirectional != 0 && args.window > 0) last = min(last, position + args.window - 1);
#endif
#if SELECTED
        selected = (const float*)rowAt(args.selected, token, args.selected_stride);
        last = min(last, args.n_selected - 1);
#endif
        end = last + 1;
        if (args.splits == 1) return;
        uint tiles = (last - start) / keys + 1;
        uint each = tiles / args.splits, longer = tiles % args.splits; // splits with one tile more
        begin += (index * each + min(index, longer)) * keys;
        end = min(begin + (each + (index < longer ? 1 : 0)) * keys, end);
    }

    /// Stores four columns of the sums of head r over the split. With Q8 the eight lanes of a block
    /// of columns call it together.
    MEMBER void store(ARGS, uint r, uint col, float4 y, OnlineSoftmax all)
    {
        if (r >= n_heads) return;
        if (args.splits == 1) return storeMerged(args, r, col, y, all);
        float4* to = (float4*)args.partial
            + ((token * args.n_heads + first_head + r) * args.splits + index) * (HEAD_DIM_V / 4 + 1);
        storeAligned<16>(to + col / 4, y);
        if (col == 0) storeAligned<16>(to + HEAD_DIM_V / 4, float4(all.maximum, all.sum, 0, 0));
    }

    /// Stores four columns of the output of head r, given its sums over all splits, as `store`.
    MEMBER void storeMerged(ARGS, uint r, uint col, float4 y, OnlineSoftmax all)
    {
        if (r >= n_heads) return;
        const uint head = first_head + r;
        if (args.sinks != nullptr)
        {
            OnlineSoftmax sink = { args.sinks[head] * LOG2_E, 1.0f };
            y *= mergeInto(all, sink).x;
        }
        uint8_t* row = rowAt(args.out, token, args.out_stride);
        storeOutput(row, args.n_heads * HEAD_DIM_V, head * HEAD_DIM_V + col, y / all.sum);
    }
};

/// Returns the workgroup's split. findKeys then finds its keys.
DEVICE KeySplit findSplit(ARGS, uint3 group)
{
    KeySplit split;
    split.token = ONE_TOKEN ? 0 : group.z;
    split.index = group.x;
    split.exists = args.is_one_token != 0 || split.token < args.step->tokens;
    uint n_kv = args.n_kv_heads, rep = args.n_heads / n_kv;
    uint parts = (rep + EACH - 1) / EACH;
    split.kv_head = group.y / parts;
    split.part = group.y % parts;
    split.first_head = split.part * EACH;
    split.n_heads = min(EACH, rep - split.first_head);
    split.first_head += split.kv_head * rep;
    split.keys = args.keys + args.key_block / n_kv * split.kv_head;
    split.values = args.values + args.value_block / n_kv * split.kv_head;
    return split;
}

#if PREPARES
/// Returns the r-th head that a workgroup prepares: its queries, then key and value.
DEVICE HeadSource headSource(ARGS, KeySplit split, uint r)
{
    float* table = (float*)rowAt(args.table, split.token, args.table_stride);
    if (r < EACH) return { split.query(args, r), HEAD_DIM, args.q_norm, false, table };
    if (r == EACH || V_FROM_K)
    {
        uint8_t* k = rowAt(args.k, split.token, args.k_stride) + 4 * split.kv_head * HEAD_DIM;
        return { k, HEAD_DIM, args.k_norm, false, table };
    }
    uint8_t* v = rowAt(args.v, split.token, args.v_stride) + 4 * split.kv_head * HEAD_DIM_V;
    return { v, HEAD_DIM_V, nullptr, args.normalises_v != 0, nullptr };
}

/// Stores a prepared key or value as chunks of `own_chunks` from `first` on, and in the cache.
DEVICE void storeOwnHead(ARGS, KeySplit split, Plane plane, uint head_dim, uint first, uint slot, uint lane)
{
    for (uint i = 0; i < head_dim / 8; i += SUBGROUP)
    {
        Chunk c = headChunk(slot, i + lane);
        if (i + lane >= head_dim / 8) break;
        own_chunks[first + i + lane] = c;
        if (split.part == 0)
            storeChunk(plane, split.inBlock(args, split.position), i + lane, head_dim, c);
    }
}

/// Prepares the heads of the workgroup, one a subgroup at a time. `head` is the first one, already
/// loaded. Returns whether the split has the key of the token itself.
DEVICE bool prepareHeads(ARGS, KeySplit split, Head& head, uint wave, uint lane)
{
    bool is_last = split.begin < split.end && split.end == split.position + 1;
    uint n = EACH + (is_last ? V_FROM_K ? 1 : 2 : 0);
    for (uint r = wave; r < n; r += WAVES)
    {
        Head next = head;
        if (r + WAVES < n) next = Head(headSource(args, split, r + WAVES), lane);
        head.prepare(args.eps, r, lane);
        uint block = split.blockAt(args, split.position);
        if (r == EACH) storeOwnHead(args, split, split.keysOf(args, block), HEAD_DIM, 0, r, lane);
        if (r > EACH) storeOwnHead(args, split, split.valuesOf(args, block), HEAD_DIM_V, OWN_VALUE, r, lane);
        head = next;
    }
    __syncthreads();
    return is_last;
}
#endif
