// The part of attention that the kernels for few queries share. A workgroup takes one split of the keys
// (group.x) of one token (group.z), for EACH heads that share a KV head (part of group.y). Each split
// stores partial sums for attention_merge; a token with one split is finished here.
//   ALIBI     scores are lowered by the distance of query and key times a slope of the head
//   CHUNKED   a token sees the keys at and after the last multiple of the window
//   PREPARES  q, k and v are the outputs of the projections. Each workgroup normalises and rotates
//             the heads that it needs, and the workgroups of the last split store key and value in
//             the cache. No other workgroup of this step reads them from there. The splits of a
//             head are merged by the last of their workgroups to finish (merge_splits.cuh) or by a
//             cluster of workgroups (merge_cluster.cuh).
//   SELECTED  a token sees only the positions in its row of `selected`; a split is a range of that row
//   ONE_TOKEN with PREPARES: the step has one token
//   TILE_TOKENS  with PREPARES, if a sequence may have several tokens in the step: neighbouring tokens
//             of one sequence that a workgroup takes. group.z is then the index of a tile of tokens
//   MOST_OWN     with TILE_TOKENS: the most tokens that a sequence has in the step

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

#ifdef TILE_TOKENS
#define HAS_TILES 1 // a sequence may have several tokens
#else
#define HAS_TILES 0
#define TILE_TOKENS 1
#define MOST_OWN 1
#endif
#define ROWS (TILE_TOKENS * EACH) // queries of a workgroup: the heads of one token after another

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
#if HAS_TILES
#include "tile_search.cuh"
#endif

#if PREPARES
#define OWN_VALUE (V_FROM_K ? SKIP_V : HEAD_DIM / 8)
#define OWN_CHUNKS ((HEAD_DIM + HEAD_DIM_V) / 8)
#define MOST_HEADS (ROWS + 2 * MOST_OWN) // heads prepared by a workgroup
#define HEADS_AT_ONCE ((MOST_HEADS + WAVES - 1) / WAVES) // heads prepared per subgroup
#define HEADS_FLOAT4S (MOST_HEADS * HEAD_FLOAT4S)
#include "heads.cuh"
// The keys of the sequence's tokens in the step, each followed by its value.
SHARED Chunk own_chunks[MOST_OWN * OWN_CHUNKS];
#endif

/// A part of the keys that the workgroup's tokens see, for some heads of one KV head.
struct KeySplit
{
    uint token, n_tokens, index; // token: the first one; index: number of the split
    uint sequence;
    uint own_token; // the first token of the sequence in the step
    uint first_head, n_heads;
    uint kv_head, part; // part: number of the group of EACH heads among those of the KV head
    uint position, first; // positions of the first token, and of the first key that it sees
    uint begin, end; // positions of the split's keys, with SELECTED their indices in the selection
#if SELECTED
    const float* selected; // positions
#endif
    int* blocks; // the sequence's block table
    uint8_t* keys; // address of the keys of the KV head in block 0
    uint8_t* values;
    bool exists;

    MEMBER uint blockTokens(ARGS) const { return 1u << args.block_shift; }
    MEMBER uint inBlock(ARGS, uint position) const { return position & (blockTokens(args) - 1); }
    MEMBER uint blockAt(ARGS, uint position) const { return blocks[position >> args.block_shift]; }

    MEMBER Plane keysOf(ARGS, uint block) const
    {
        return { keys + uint64_t(block) * args.key_block, blockTokens(args) };
    }

    MEMBER Plane valuesOf(ARGS, uint block) const
    {
        return { values + uint64_t(block) * args.value_block, blockTokens(args) };
    }

    /// The token and the head of query r. Queries past the last token or head repeat it.
    MEMBER uint tokenOf(uint r) const { return token + min(r / EACH, n_tokens - 1); }
    MEMBER uint headOf(uint r) const { return first_head + min(r % EACH, n_heads - 1); }
    MEMBER bool hasQuery(uint r) const { return r / EACH < n_tokens && r % EACH < n_heads; }
    MEMBER uint positionOf(uint r) const { return position + tokenOf(r) - token; }

    /// The position of the sequence's first token in the step.
    MEMBER uint ownPosition() const { return position + own_token - token; }
    MEMBER uint lastPosition() const { return position + n_tokens - 1; }

    /// The first of the sequence's tokens in the step whose key may be in the split.
    MEMBER uint firstOwn() const
    {
        return min(max(begin, ownPosition()), lastPosition()) - ownPosition();
    }

    /// Returns the address of query r, before norm and RoPE if this kernel applies them (PREPARES).
    MEMBER uint8_t* query(ARGS, uint r) const
    {
        return rowAt(args.q, tokenOf(r), args.q_stride) + 4 * headOf(r) * HEAD_DIM;
    }

    /// Returns four columns of query r, after norm and RoPE.
    MEMBER float4 queryFour(ARGS, uint r, uint col)
    {
#if PREPARES
        return headFour(r, col / 4);
#else
        return loadFour(query(args, r), HEAD_DIM, col);
#endif
    }

    /// The score of query r for the key at a position, as an exponent of 2. `dot` is their dot product.
    MEMBER float scored(ARGS, float dot, uint r, uint key)
    {
        float score = scaledScore(dot, args.softcap);
#if ALIBI
        float slope = args.slopes[headOf(r)] * LOG2_E;
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
        const uint table = args.block_table;
        position = ::positionOf(args.step, token);
        blocks = args.step->tables[table] + sequence * args.step->table_stride[table];
        first = firstKey(args, position);
        uint start = first / keys * keys;
        begin = start;
        uint last = lastPosition();
#if !PREPARES
        if (args.bidirectional != 0 && args.is_one_token == 0)
            last = ::positionOf(args.step, args.step->seq_start[sequence + 1] - 1);
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

    /// Stores four columns of the sums of head r over the split. With Q8, the eight lanes of a block of
    /// columns call it together.
    MEMBER void store(ARGS, uint r, uint col, float4 y, OnlineSoftmax all)
    {
        if (!hasQuery(r)) return;
        if (args.splits == 1) return storeMerged(args, r, col, y, all);
        float4* to = (float4*)args.partial
            + ((tokenOf(r) * args.n_heads + headOf(r)) * args.splits + index) * (HEAD_DIM_V / 4 + 1);
        storeAligned<16>(to + col / 4, y);
        if (col == 0) storeAligned<16>(to + HEAD_DIM_V / 4, float4(all.maximum, all.sum, 0, 0));
    }

    /// Stores four columns of the output of head r, given its sums over all splits. Lanes call it as
    /// they call `store`.
    MEMBER void storeMerged(ARGS, uint r, uint col, float4 y, OnlineSoftmax all)
    {
        if (!hasQuery(r)) return;
        const uint head = headOf(r);
        if (args.sinks != nullptr)
        {
            OnlineSoftmax sink = { args.sinks[head] * LOG2_E, 1.0f };
            y *= mergeInto(all, sink).x;
        }
        uint8_t* row = rowAt(args.out, tokenOf(r), args.out_stride);
        storeOutput(row, args.n_heads * HEAD_DIM_V, head * HEAD_DIM_V + col, y / all.sum);
    }
};

/// Returns the workgroup's split. findKeys then finds its keys.
DEVICE KeySplit findSplit(ARGS, uint3 group)
{
    KeySplit split;
    split.index = group.x;
#if HAS_TILES
    const SequenceTile tile = findSequenceTile(args.step, group.z, 1, TILE_TOKENS);
    split.exists = tile.tokens > 0;
    split.sequence = tile.sequence;
    split.own_token = tile.start;
    split.token = tile.start + tile.index * TILE_TOKENS;
    split.n_tokens = min(TILE_TOKENS, tile.tokens - tile.index * TILE_TOKENS);
#else
    split.token = split.own_token = ONE_TOKEN ? 0 : group.z;
    split.n_tokens = 1;
    split.exists = args.is_one_token != 0 || split.token < args.step->tokens;
    split.sequence = split.token;
    if (!PREPARES && split.exists)
        split.sequence = args.is_one_token != 0 ? 0 : args.step->sequence[split.token];
#endif
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
/// Returns the r-th head that a workgroup prepares: its queries, then key and value of the
/// tokens of the sequence in this step, from the first in the split on.
DEVICE HeadSource headSource(ARGS, KeySplit split, uint r)
{
    const uint index = r < ROWS ? 0 : r - ROWS;
    const uint token
        = r < ROWS ? split.tokenOf(r) : split.own_token + split.firstOwn() + index / 2;
    float* table = (float*)args.table + token * args.table_stride;
    if (r < ROWS) return { split.query(args, r), HEAD_DIM, args.q_norm, false, table };
    if (index % 2 == 0 || V_FROM_K)
    {
        uint8_t* k = rowAt(args.k, token, args.k_stride) + 4 * split.kv_head * HEAD_DIM;
        return { k, HEAD_DIM, args.k_norm, false, table };
    }
    uint8_t* v = rowAt(args.v, token, args.v_stride) + 4 * split.kv_head * HEAD_DIM_V;
    return { v, HEAD_DIM_V, nullptr, args.normalises_v != 0, nullptr };
}

/// Stores the prepared key or value of a position as chunks of `own_chunks` starting at `first`, and in
/// the cache if the position is that of a token of the workgroup.
DEVICE void storeOwnHead(
    ARGS, KeySplit split, Plane plane, uint position, uint head_dim, uint first, uint slot, uint lane)
{
    const bool is_stored = split.part == 0 && position >= split.position;
    for (uint i = 0; i < head_dim / 8; i += SUBGROUP)
    {
        Chunk c = headChunk(slot, i + lane);
        if (i + lane >= head_dim / 8) break;
        own_chunks[first + i + lane] = c;
        if (is_stored) storeChunk(plane, split.inBlock(args, position), i + lane, head_dim, c);
    }
}

/// The heads that a subgroup prepares: `wave` and every WAVES-th after it.
struct OwnHeads
{
    Head heads[HEADS_AT_ONCE];
    uint first, n; // position of the first key; number of heads of the workgroup
    bool has_keys; // the split has keys of tokens in this step

    MEMBER explicit OwnHeads(const KeySplit& split)
        : first(split.ownPosition() + split.firstOwn())
        , has_keys(split.begin < split.end && split.end > first)
    {
        n = ROWS + (has_keys ? (V_FROM_K ? 1 : 2) * (split.end - first) : 0);
    }

    MEMBER void loadWeights(ARGS, const KeySplit& split, uint wave, uint lane)
    {
        UNROLL for (uint k = 0; k < HEADS_AT_ONCE; k++)
            if (wave + k * WAVES < n)
                heads[k].loadWeights(headSource(args, split, wave + k * WAVES), lane);
    }

    MEMBER void loadRows(ARGS, const KeySplit& split, uint wave, uint lane)
    {
        UNROLL for (uint k = 0; k < HEADS_AT_ONCE; k++)
            if (wave + k * WAVES < n)
                heads[k].loadRow(headSource(args, split, wave + k * WAVES), lane);
    }

    /// Prepares the heads, each in the slot of its number, and stores keys and values.
    MEMBER void prepare(ARGS, const KeySplit& split, uint wave, uint lane)
    {
        prepareHeads(heads, wave, WAVES, n, args.eps, lane);
        for (uint r = wave; r < n; r += WAVES)
            if (r >= ROWS) storeKeyOrValue(args, split, r, lane);
        __syncthreads();
    }

private:
    MEMBER void storeKeyOrValue(ARGS, const KeySplit& split, uint r, uint lane) const
    {
        const bool is_value = (r - ROWS) % 2 > 0;
        const uint position = first + (r - ROWS) / 2, i = position - split.ownPosition();
        const uint block = split.blockAt(args, position);
        storeOwnHead(args, split,
            is_value ? split.valuesOf(args, block) : split.keysOf(args, block), position,
            is_value ? HEAD_DIM_V : HEAD_DIM, i * OWN_CHUNKS + (is_value ? OWN_VALUE : 0), r, lane);
    }
};
#endif
