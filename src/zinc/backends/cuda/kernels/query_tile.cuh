// The part of attention that the kernels for many queries share. A workgroup takes a KV head and a
// tile of BQ rows of one sequence. A row is one query head of one token; the heads of a token that
// share the KV head are neighbouring rows. The kernel defines Arguments.
//   ALIBI    scores are lowered by the distance of query and key times a slope of the head
//   CHUNKED  a token sees the keys at and after the last multiple of the window
//   SELECTED a token sees only the positions in its row of `selected`. A tile has rows of one token,
//            and its keys are indices into that row instead of positions.

#ifndef ALIBI
#define ALIBI 0
#endif
#ifndef CHUNKED
#define CHUNKED 0
#endif

#ifndef SELECTED
#define SELECTED 0
#endif

#include "step.cuh"
#include "floats.cuh"
#include "kv.cuh"
#include "q8.cuh"
#include "softmax.cuh"
#include "tile_search.cuh"

/// A tile of rows of one sequence.
struct QueryTile
{
    uint kv_head, rep; // rep: query heads of a KV head
    uint start; // first token of the sequence in this step
    uint row0, rows; // first row of the tile among those of the sequence; number of rows
    uint position0; // position of the first token; positions are consecutive
    uint first, last; // range of the positions that at least one row sees
    uint end; // last position of the sequence
    int* blocks;
#if SELECTED
    const float* selected; // positions
#endif

    MEMBER uint tokenOf(uint r) { return start + (row0 + r) / rep; }
    MEMBER uint headOf(uint r) { return kv_head * rep + (row0 + r) % rep; }
    MEMBER uint positionOf(uint r) { return position0 + (row0 + r) / rep; }

    MEMBER bool isVisible(ARGS, uint position, uint key)
    {
#if CHUNKED
        return key <= position && key >= firstOf(args, position);
#else
        return key <= lastOf(args, position) && (args.window == 0 || key + args.window > position);
#endif
    }

    /// The first key that the token at a position sees.
    MEMBER uint firstOf(ARGS, uint position)
    {
#if SELECTED
        return 0;
#elif CHUNKED
        return position / args.window * args.window;
#else
        return args.window > 0 && position >= args.window ? position - (args.window - 1) : 0;
#endif
    }

    /// The last key that the token at a position sees.
    MEMBER uint lastOf(ARGS, uint position)
    {
        if (SELECTED) return last;
        if (args.bidirectional == 0) return position;
        return args.window == 0 ? end : min(end, position + (args.window - 1));
    }

    /// The score of row r for a key, as an exponent of 2. `dot` is their dot product.
    MEMBER float scored(ARGS, float dot, uint r, uint key)
    {
        float score = scaledScore(dot, args.softcap);
#if ALIBI
        score -= args.slopes[headOf(r)] * LOG2_E * abs(float(int(key) - int(positionOf(r))));
#endif
        return score;
    }

    /// The query of row r. Rows past the last one repeat it.
    MEMBER float* queryRow(ARGS, uint r)
    {
        r = min(r, rows - 1);
        return (float*)rowAt(args.q, tokenOf(r), args.q_stride) + headOf(r) * HEAD_DIM;
    }

    /// Chunk `chunk` of the query of row r.
    MEMBER uint4 query(ARGS, uint r, uint chunk)
    {
        uint8_t* row = (uint8_t*)queryRow(args, r);
        float4 a = loadFour(row, HEAD_DIM, 8 * chunk), b = loadFour(row, HEAD_DIM, 8 * chunk + 4);
        return packHalves(a, b);
    }

    MEMBER uint blockTokens(ARGS) { return 1u << args.block_shift; }
    MEMBER uint inBlock(ARGS, uint position) { return position & (blockTokens(args) - 1); }
    MEMBER uint blockAt(ARGS, uint position) { return blocks[position >> args.block_shift]; }

    MEMBER Plane keysOf(ARGS, uint block)
    {
        uint plane = args.key_block / args.n_kv_heads * kv_head;
        return { args.keys + (uint64_t(block) * args.key_block + plane), blockTokens(args) };
    }

    MEMBER Plane valuesOf(ARGS, uint block)
    {
        uint plane = args.value_block / args.n_kv_heads * kv_head;
        return { args.values + (uint64_t(block) * args.value_block + plane), blockTokens(args) };
    }

    /// The factor that turns the sums of row r into its output.
    MEMBER float finalScale(ARGS, uint r, OnlineSoftmax running)
    {
        float scale = 1.0f;
        if (args.sinks != nullptr)
        {
            OnlineSoftmax sink = { args.sinks[headOf(r)] * LOG2_E, 1.0f };
            scale = mergeInto(running, sink).x;
        }
        return scale / running.sum;
    }

    /// Stores four columns of row r. With Q8, the eight lanes of a block call it together.
    MEMBER void store(ARGS, uint r, uint col, float4 v)
    {
        if (r >= rows) return;
        storeOutput(rowAt(args.out, tokenOf(r), args.out_stride), args.n_heads * HEAD_DIM_V,
                 headOf(r) * HEAD_DIM_V + col, v);
    }
};

#if SELECTED
/// Returns tile `index` of all tokens. It has no rows if there are fewer tiles.
DEVICE QueryTile findTile(ARGS, uint kv_head, uint index)
{
    QueryTile t;
    t.kv_head = kv_head;
    t.rep = args.n_heads / args.n_kv_heads;
    t.rows = 0;
    const uint parts = (t.rep + BQ - 1) / BQ, table = args.block_table;
    t.start = index / parts;
    if (t.start >= args.step->tokens) return t;
    t.blocks = args.step->tables[table] + args.step->sequence[t.start] * args.step->table_stride[table];
    t.selected = (const float*)rowAt(args.selected, t.start, args.selected_stride);
    t.row0 = index % parts * BQ;
    t.rows = min(BQ, t.rep - t.row0);
    t.position0 = t.end = positionOf(args.step, t.start);
    t.first = 0;
    t.last = min(t.position0, args.n_selected - 1);
    return t;
}
#else
/// Returns tile `index` of all sequences. It has no rows if there are fewer tiles.
DEVICE QueryTile findTile(ARGS, uint kv_head, uint index)
{
    QueryTile t;
    t.kv_head = kv_head;
    t.rep = args.n_heads / args.n_kv_heads;
    t.rows = 0;
    const SequenceTile found = findSequenceTile(args.step, index, t.rep, BQ);
    if (found.tokens == 0) return t;
    t.start = found.start;
    uint table = args.block_table;
    t.blocks = args.step->tables[table] + found.sequence * args.step->table_stride[table];
    t.row0 = found.index * BQ;
    t.rows = min(BQ, found.tokens * t.rep - t.row0);
    t.position0 = positionOf(args.step, t.start);
    t.first = t.firstOf(args, t.positionOf(0));
    t.end = t.position0 + found.tokens - 1;
    t.last = t.lastOf(args, t.positionOf(t.rows - 1));
    return t;
}
#endif
