// Attention of several queries with tensor cores (FlashAttention-2, arXiv:2307.08691). A block takes a
// KV head (grid.x), a tile of BQ rows of one sequence (grid.y) and a split of the keys (grid.z). Tiles
// of BK positions are staged in a ring buffer in shared memory: keys, then the values of the same
// positions, then the next keys. Two tiles are in flight while one is multiplied.
//   ROW_WARPS  warps with rows of their own, 16 each
//   KEY_WARPS  warps that share 16 rows; each scores its part of the positions of a tile
//   SPLIT      keys are split; attention_merge merges the sums of the splits

#include "arguments.h"

using Arguments = AttentionMmaArguments;

#define BQ (16 * ROW_WARPS)
#define THREADS (ROW_WARPS * KEY_WARPS * SUBGROUP)
#include "row_softmax.cuh"

#define OWN_KEYS (BK / KEY_WARPS)
#define STAGES 3

// Q8_0 tiles are loaded into registers while the previous tile is multiplied, if registers suffice.
#define PREFETCHES (HEAD_DIM + HEAD_DIM_V <= 256)

typedef StagedTile<BK, HEAD_DIM / 8, THREADS> KeyTile;
typedef StagedTile<BK, HEAD_DIM_V / 8, THREADS> ValueTile;
#define TILE_CHUNKS (KeyTile::SIZE > ValueTile::SIZE ? KeyTile::SIZE : ValueTile::SIZE)
#define SUM_GROUPS uint(HEAD_DIM_V / 8) // groups of eight columns of the sums

SHARED uint4 ring[STAGES * TILE_CHUNKS]; // reused for the sums of the warps that share rows

/// Returns how many groups of sums of all warps fit into the ring.
constexpr uint mergedGroups()
{
    uint groups = SUM_GROUPS;
    while (SUM_GROUPS % groups > 0
           || ROW_WARPS * (KEY_WARPS - 1) * (groups + 1) * SUBGROUP > STAGES * TILE_CHUNKS)
        groups--;
    return groups;
}
#define MERGED_GROUPS mergedGroups()
#define MERGED_FOURS ((MERGED_GROUPS + 1) * SUBGROUP)

/// The 16 rows of a warp. A lane holds columns of two of these rows.
struct WarpRows : RowPair
{
    uint queries[HEAD_DIM / 16][4];
    float sums[SUM_GROUPS][4];
    uint key0; // first position of a tile that the warp scores
    bool exists;

    MEMBER void load(ARGS, QueryTile& t, uint thread)
    {
        uint warp = thread / SUBGROUP, lane = thread % SUBGROUP;
        uint first = warp / KEY_WARPS * 16;
        RowPair::load(args, t, first + lane / 4);
        loadQueries(args, t, 0, queries);
        key0 = warp % KEY_WARPS * OWN_KEYS;
        exists = first < t.rows;
        UNROLL for (uint n = 0; n < SUM_GROUPS; n++)
            UNROLL for (uint i = 0; i < 4; i++) sums[n][i] = 0;
    }

    /// Scores the warp's positions of a tile of keys.
    MEMBER void score(uint4* tile, uint lane, float (&scores)[OWN_KEYS / 8][4])
    {
        // Lanes 0 to 15 address eight keys, the other lanes the next eight. The first eight lanes of
        // each half address the left eight dimensions of 16, the others the right ones.
        uint from = key0 + lane % 8 + lane / 16 * 8, side = lane / 8 % 2;
        UNROLL for (uint n = 0; n < OWN_KEYS / 8; n++)
            UNROLL for (uint i = 0; i < 4; i++) scores[n][i] = 0;
        UNROLL for (uint k = 0; k < HEAD_DIM / 16; k++)
            UNROLL for (uint n = 0; n < OWN_KEYS / 16; n++)
            {
                uint b[4];
                loadMatrices(b, tile + KeyTile::index(from + 16 * n, 2 * k + side));
                multiplyTiles(scores[2 * n], queries[k], b[0], b[1]);
                multiplyTiles(scores[2 * n + 1], queries[k], b[2], b[3]);
            }
    }

    /// Applies the online softmax: turns scores of the keys starting at position `from` into weights of
    /// the values, and rescales the sums.
    MEMBER void weigh(ARGS, QueryTile& t, uint from, float (&scores)[OWN_KEYS / 8][4])
    {
        float corrections[2];
        bool changes = RowPair::weigh(args, t, from + key0, scores, corrections);
        if (__ballot_sync(0xffffffffu, changes) == 0) return;
        UNROLL for (uint n = 0; n < SUM_GROUPS; n++)
            UNROLL for (uint i = 0; i < 4; i++) sums[n][i] *= corrections[i / 2];
    }

    /// Adds the values of the warp's positions of a tile, times their weights.
    MEMBER void add(uint4* tile, uint lane, float (&weights)[OWN_KEYS / 8][4])
    {
        uint from = key0 + lane % 16, side = lane / 16;
        UNROLL for (uint k = 0; k < OWN_KEYS / 16; k++)
        {
            float(&left)[4] = weights[2 * k], (&right)[4] = weights[2 * k + 1];
            uint a[4] = { packHalves(left[0], left[1]), packHalves(left[2], left[3]),
                          packHalves(right[0], right[1]), packHalves(right[2], right[3]) };
            UNROLL for (uint n = 0; n < SUM_GROUPS / 2; n++)
            {
                uint b[4];
                loadMatricesTransposed(b, tile + ValueTile::index(from + 16 * k, 2 * n + side));
                multiplyTiles(sums[2 * n], a, b[0], b[1]);
                multiplyTiles(sums[2 * n + 1], a, b[2], b[3]);
            }
        }
    }

#if KEY_WARPS > 1
    /// Merges the sums of the warps that share rows into those of the first warp. The ring holds
    /// MERGED_GROUPS groups of columns at a time.
    MEMBER void merge(uint thread)
    {
        uint warp = thread / SUBGROUP, part = warp % KEY_WARPS;
        float4* shared = (float4*)ring
            + warp / KEY_WARPS * (KEY_WARPS - 1) * MERGED_FOURS + thread % SUBGROUP;
        float2 corrections[KEY_WARPS][2];
        UNROLL for (uint first = 0; first < SUM_GROUPS; first += MERGED_GROUPS)
        {
            __syncthreads();
            float4* own = shared + (part - 1) * MERGED_FOURS;
            UNROLL for (uint n = 0; n < MERGED_GROUPS; n++)
            {
                float(&x)[4] = sums[first + n];
                if (part > 0) own[n * SUBGROUP] = float4(x[0], x[1], x[2], x[3]);
            }
            if (part > 0)
                own[MERGED_GROUPS * SUBGROUP] = float4(maximum[0], total[0], maximum[1], total[1]);
            __syncthreads();
            if (part > 0) continue;
            UNROLL for (uint w = 1; w < KEY_WARPS; w++)
            {
                float4* from = shared + (w - 1) * MERGED_FOURS;
                if (first == 0) mergeTotals(from[MERGED_GROUPS * SUBGROUP], corrections[w]);
                UNROLL for (uint n = 0; n < MERGED_GROUPS; n++)
                    UNROLL for (uint i = 0; i < 4; i++)
                    {
                        float2 by = corrections[w][i / 2];
                        float& sum = sums[first + n][i];
                        sum = sum * by.x + from[n * SUBGROUP][i] * by.y;
                    }
            }
        }
    }

    /// Merges maxima and totals of another warp, and returns the factors of both warps' sums.
    MEMBER void mergeTotals(float4 other, float2 (&corrections)[2])
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            OnlineSoftmax all = { maximum[h], total[h] };
            corrections[h] = mergeInto(all, { other[2 * h], other[2 * h + 1] });
            maximum[h] = all.maximum;
            total[h] = all.sum;
        }
    }
#endif

    /// Stores the output of the rows, or their sums if keys are split.
    MEMBER void store(ARGS, QueryTile& t, uint lane)
    {
        sumTotals();
        UNROLL for (uint h = 0; h < 2; h++)
        {
            uint r = row + 8 * h;
            if (r >= t.rows) continue;
            OnlineSoftmax all = { maximum[h], total[h] };
            float scale = SPLIT ? 1.0f : t.finalScale(args, r, all);
#if SPLIT
            if (lane % 4 == 0) storeTotals(args, t, r, all);
#endif
            float pairs[SUM_GROUPS][2];
            UNROLL for (uint n = 0; n < SUM_GROUPS; n++)
                UNROLL for (uint i = 0; i < 2; i++) pairs[n][i] = sums[n][2 * h + i] * scale;
            storeColumns(args, t, r, 0, pairs);
        }
    }
};

/// Tiles of keys and values in the order in which they are staged, with the slot of the ring for the
/// next one.
struct Tiles : KeyRange
{
    uint slot; // slot of the tile to multiply

    MEMBER Tiles(ARGS, QueryTile& t) : KeyRange(args, t), slot(0) {}

    MEMBER uint4* current() { return ring + slot * TILE_CHUNKS; }
    /// The slot of the tile after the next one.
    MEMBER uint4* free() { return ring + (slot + 2) % STAGES * TILE_CHUNKS; }
    MEMBER void advance() { slot = (slot + 1) % STAGES; }

    MEMBER void loadKeys(ARGS, QueryTile& t, KeyTile& tile, uint4* to, uint from)
    {
        if (from >= end) return;
        tile.load(to, t.keysOf(args, t.blockAt(args, from)), t.inBlock(args, from), 0, HEAD_DIM);
    }

    MEMBER void loadValues(ARGS, QueryTile& t, ValueTile& tile, uint4* to, uint from)
    {
        if (from >= end) return;
        tile.load(to, t.valuesOf(args, t.blockAt(args, from)), t.inBlock(args, from), SKIP_V, V_WIDTH);
    }
};

KERNEL(attention_mma, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP;
    // The last rows of a prompt see most keys, so their tiles start first.
    QueryTile t = findTile(args, blockIdx.x, gridDim.y - 1 - blockIdx.y);
    if (t.rows == 0) return;
    Tiles tiles(args, t);
    KeyTile keys;
    ValueTile values;
    tiles.loadKeys(args, t, keys, ring, tiles.begin);
    keys.store(ring);
    commitCopies();
    tiles.loadValues(args, t, values, ring + TILE_CHUNKS, tiles.begin);
    values.store(ring + TILE_CHUNKS);
    commitCopies();
    WarpRows rows;
    rows.load(args, t, thread);

    for (uint from = tiles.begin; from < tiles.end; from += BK)
    {
        float weights[OWN_KEYS / 8][4];
        waitForCopies<1>();
        __syncthreads();
        if (PREFETCHES) tiles.loadKeys(args, t, keys, tiles.free(), from + BK);
        if (rows.exists)
        {
            rows.score(tiles.current(), lane, weights);
            rows.weigh(args, t, from, weights);
        }
        if (!PREFETCHES) tiles.loadKeys(args, t, keys, tiles.free(), from + BK);
        if (from + BK < tiles.end) keys.store(tiles.free());
        commitCopies();
        tiles.advance();

        waitForCopies<1>();
        __syncthreads();
        if (PREFETCHES) tiles.loadValues(args, t, values, tiles.free(), from + BK);
        if (rows.exists) rows.add(tiles.current(), lane, weights);
        if (!PREFETCHES) tiles.loadValues(args, t, values, tiles.free(), from + BK);
        if (from + BK < tiles.end) values.store(tiles.free());
        commitCopies();
        tiles.advance();
    }
#if KEY_WARPS > 1
    rows.merge(thread);
    if (thread / SUBGROUP % KEY_WARPS > 0) return;
#endif
    if (rows.exists) rows.store(args, t, lane);
}
