// Attention of wide heads with tensor cores, such as latent attention, whose keys and values are the
// same numbers. A block takes a KV head (grid.x), a tile of BQ rows of one sequence (grid.y) and a
// split of the keys (grid.z). The sums of a row do not fit into the registers of one warp, so warps
// divide the two products in different ways:
//
//     scores   16 rows per warp; DIM_WARPS warps add up their dimensions, KEY_WARPS share positions
//     sums     all rows; each warp has HEAD_DIM_V / WARPS columns of the values
//
// Scores and weights pass through shared memory in between. While the values of a tile of BK positions
// are summed, the keys of the next tile are scored and later tiles are copied.
//   ROW_TILES  tiles of 16 rows per block
//   STAGES     tiles in shared memory; with KV_Q8 tiles of 8-bit numbers, which become two of float16
//   SPLIT      keys are split; attention_merge merges the sums of the splits
//   SELECTED   each row of a tile of keys is copied from the position that is selected (query_tile.cuh)

#include "arguments.h"

#if SELECTED
using Arguments = SelectedMmaArguments;
#else
using Arguments = AttentionMmaArguments;
#endif

#define BQ (16 * ROW_TILES)
#define TILE_WARPS (DIM_WARPS * KEY_WARPS) // warps of 16 rows
#define WARPS (ROW_TILES * TILE_WARPS)
#define THREADS (WARPS * SUBGROUP)
#include "row_softmax.cuh"
#include "half_pairs.cuh"

#define OWN_STEPS (HEAD_DIM / 16 / DIM_WARPS) // steps of 16 dimensions that a warp scores
#define OWN_KEYS (BK / KEY_WARPS)
#define OWN_COLUMNS (HEAD_DIM_V / WARPS)
#define KEY_GROUPS (BK / 8)

// Rows have an odd pitch, so that loads of eight rows have no bank conflicts and addresses are at
// constant distances.
#define KEY_PITCH (HEAD_DIM / 8 | 1)
#define VALUE_PITCH (V_FROM_K ? KEY_PITCH : HEAD_DIM_V / 8 | 1)
#define WEIGHT_PITCH (BK / 8 | 1)
#define VALUES_AT (V_FROM_K ? SKIP_V : BK * KEY_PITCH) // chunk of a tile
#define TILE_CHUNKS (BK * (KEY_PITCH + (V_FROM_K ? 0 : VALUE_PITCH)))

#if KV_Q8
#define TILES 2
#define RAW_CHUNKS(dim) (BK * (dim + (dim + 31) / 32 * 2) / 16) // numbers, then scales
#define RAW_TILE (RAW_CHUNKS(HEAD_DIM) + (V_FROM_K ? 0 : RAW_CHUNKS(HEAD_DIM_V)))
#define AHEAD (STAGES + 1) // tiles whose copies have started before the first one is multiplied
DYNAMIC_SHARED(stages, (TILES * TILE_CHUNKS + STAGES * RAW_TILE) * 16);
#else
// Values that are not part of keys are needed one tile later, and copied then.
#define TILES (V_FROM_K ? STAGES : STAGES - 1)
#define AHEAD (STAGES - 1)
DYNAMIC_SHARED(stages, TILES * TILE_CHUNKS * 16);
#endif

SHARED float4 parts[ROW_TILES][DIM_WARPS][KEY_GROUPS][SUBGROUP]; // partial scores
SHARED uint4 weights[BQ * WEIGHT_PITCH];
SHARED float factors[BQ]; // factors of the sums: softmax corrections, at the end the final scales

/// The tiles of keys and values of a block. Threads copy neighbouring chunks of a row.
struct Tiles : KeyRange
{
    uint next; // position of the tile to copy next
    uint block, last_block; // blocks of that tile, and of the tile before it
#if SELECTED
    uint token; // position in `block` of the row that this thread copies next
#endif
    uint copied, multiplied; // numbers of tiles

    MEMBER Tiles(ARGS, QueryTile& t) : KeyRange(args, t)
    {
        next = begin;
        copied = multiplied = 0;
        findNext(args, t);
        last_block = block;
    }

    /// Finds where the keys of the tile to copy next lie.
    MEMBER void findNext(ARGS, QueryTile& t)
    {
#if SELECTED
        uint row = threadIdx.x / (THREADS / BK), position = uint(t.selected[min(next + row, t.last)]);
        token = t.inBlock(args, position);
#else
        uint position = min(next, t.last);
#endif
        block = t.blockAt(args, position);
    }

    /// Returns where the tile to copy next starts in its block; with SELECTED, where this thread's row
    /// is.
    MEMBER uint tokenOf(ARGS, QueryTile& t)
    {
#if SELECTED
        return token;
#else
        return t.inBlock(args, next);
#endif
    }

    /// Returns the tile that follows `i` tiles after the tile whose values are summed.
    MEMBER uint4* tile(uint i) { return (uint4*)stages + (multiplied + i) % TILES * TILE_CHUNKS; }

    /// Calls `act(row, chunk)` for each chunk of this thread.
    template <uint CHUNKS, class Act> MEMBER static void each(Act act)
    {
        constexpr uint LANES = THREADS / BK; // threads that share a row
        uint thread = threadIndex(), row = thread / LANES, first = thread % LANES;
        UNROLL for (uint i = 0; i < (CHUNKS + LANES - 1) / LANES; i++)
            if (CHUNKS % LANES == 0 || i * LANES + first < CHUNKS) act(row, i * LANES + first);
    }

    /// Starts copies of the next tile.
    MEMBER void copy(ARGS, QueryTile& t)
    {
#if KV_Q8
        uint4* to = (uint4*)stages + TILES * TILE_CHUNKS + copied % STAGES * RAW_TILE;
        uint token = tokenOf(args, t);
        if (next < end) copyRaw<HEAD_DIM>(to, t.keysOf(args, block), token);
        if (!V_FROM_K && next < end)
            copyRaw<HEAD_DIM_V>(to + RAW_CHUNKS(HEAD_DIM), t.valuesOf(args, block), token);
#else
        uint4* to = (uint4*)stages + copied % TILES * TILE_CHUNKS;
        if (next < end)
            copyRows<HEAD_DIM, KEY_PITCH>(to, t.keysOf(args, block), tokenOf(args, t));
        if (!V_FROM_K && copied > 0 && next < end + BK)
        {
            to = (uint4*)stages + (copied - 1) % TILES * TILE_CHUNKS + VALUES_AT;
            Plane values = t.valuesOf(args, last_block);
            copyRows<HEAD_DIM_V, VALUE_PITCH>(to, values, t.inBlock(args, next - BK));
        }
#endif
        commitCopies();
        copied++;
        next += BK;
        last_block = block;
        findNext(args, t);
    }

#if KV_Q8
    /// Starts copies of the numbers and the scales of BK positions. They are contiguous, but with
    /// SELECTED each thread copies a position of its own.
    template <uint DIM> MEMBER static void copyRaw(uint4* to, Plane plane, uint token)
    {
        constexpr uint NUMBERS = BK * DIM / 16, SCALES = RAW_CHUNKS(DIM) - NUMBERS;
        Chunks from = plane.chunksFrom(token, 0, DIM);
#if SELECTED
        each<DIM / 16>([&](uint row, uint i) {
            copyAsync(to + row * (DIM / 16) + i, from.numbers + 16 * i, true);
        });
        each<DIM / 64>([&](uint row, uint i) {
            copySmallAsync<4>((uint*)(to + NUMBERS) + row * (DIM / 64) + i, (const uint*)from.scales + i);
        });
        return;
#endif
        uint thread = threadIndex();
        UNROLL for (uint i = 0; i < (NUMBERS + THREADS - 1) / THREADS; i++)
        {
            uint at = i * THREADS + thread;
            if (NUMBERS % THREADS == 0 || at < NUMBERS) copyAsync(to + at, from.numbers + 16 * at, true);
        }
        if (thread < SCALES) copyAsync(to + NUMBERS + thread, (uint8_t*)from.scales + 16 * thread, true);
    }

    /// Converts the tile that follows `i` tiles after the tile whose values are summed. Its copy has
    /// arrived.
    MEMBER void convert(uint i)
    {
        uint at = multiplied + i;
        if (begin + at * BK >= end) return;
        uint4* from = (uint4*)stages + TILES * TILE_CHUNKS + at % STAGES * RAW_TILE;
        convertRows<HEAD_DIM, KEY_PITCH>(tile(i), from);
        if (!V_FROM_K)
            convertRows<HEAD_DIM_V, VALUE_PITCH>(tile(i) + VALUES_AT, from + RAW_CHUNKS(HEAD_DIM));
    }

    template <uint DIM, uint PITCH> MEMBER static void convertRows(uint4* to, const uint4* from)
    {
        const uint2* numbers = (const uint2*)from;
        const uint16_t* scales = (const uint16_t*)(from + BK * DIM / 16);
        each<DIM / 8>([&](uint row, uint chunk) {
            uint scale = scales[row * ((DIM + 31) / 32) + chunk / 4] * 0x10001u;
            uint2 q = numbers[row * (DIM / 8) + chunk];
            uint4 x;
            UNROLL for (uint h = 0; h < 2; h++)
            {
                uint even, odd;
                halvesOfSigned(q[h], even, odd);
                x[2 * h] = multiplyHalves(__byte_perm(even, odd, 0x5410), scale);
                x[2 * h + 1] = multiplyHalves(__byte_perm(even, odd, 0x7632), scale);
            }
            to[row * PITCH + chunk] = x;
        });
    }
#else
    template <uint DIM, uint PITCH> MEMBER static void copyRows(uint4* to, Plane plane, uint token)
    {
        each<DIM / 8>([&](uint row, uint chunk) {
            uint at = SELECTED ? token : token + row;
            copyAsync(to + row * PITCH + chunk, plane.chunksFrom(at, chunk, DIM).numbers, true);
        });
    }
#endif
};

/// A warp's share of a block: 16 rows of the scores, and some columns of the sums of all rows.
struct WarpRows
{
    uint queries[OWN_STEPS][4];
    float sums[ROW_TILES][OWN_COLUMNS / 8][4];
    RowPair rows; // rows of the scores
    uint row_tile, dim_part, key_part, column;

    MEMBER void load(ARGS, QueryTile& t)
    {
        uint warp = threadIdx.x / SUBGROUP;
        row_tile = warp / TILE_WARPS;
        dim_part = warp % DIM_WARPS;
        key_part = warp / DIM_WARPS % KEY_WARPS;
        column = warp * OWN_COLUMNS;
        rows.load(args, t, 16 * row_tile + threadIdx.x % SUBGROUP / 4);
        rows.loadQueries(args, t, dim_part * OWN_STEPS * 16, queries);
        UNROLL for (uint m = 0; m < ROW_TILES; m++)
            UNROLL for (uint n = 0; n < OWN_COLUMNS / 8; n++)
                UNROLL for (uint i = 0; i < 4; i++) sums[m][n][i] = 0;
    }

    /// Scores the warp's positions of a tile against its queries, over the warp's dimensions.
    MEMBER void score(const uint4* tile, uint lane)
    {
        float scores[OWN_KEYS / 8][4];
        UNROLL for (uint n = 0; n < OWN_KEYS / 8; n++)
            UNROLL for (uint i = 0; i < 4; i++) scores[n][i] = 0;
        // Lanes 0 to 15 address eight keys, the other lanes the next eight. The first eight lanes of
        // each half address the left eight dimensions of 16, the others the right ones.
        const uint4* from = tile + (key_part * OWN_KEYS + lane % 8 + lane / 16 * 8) * KEY_PITCH
            + 2 * dim_part * OWN_STEPS + lane / 8 % 2;
        UNROLL for (uint k = 0; k < OWN_STEPS; k++)
            UNROLL for (uint n = 0; n < OWN_KEYS / 16; n++)
            {
                uint b[4];
                loadMatrices(b, from + 16 * n * KEY_PITCH + 2 * k);
                multiplyTiles(scores[2 * n], queries[k], b[0], b[1]);
                multiplyTiles(scores[2 * n + 1], queries[k], b[2], b[3]);
            }
        UNROLL for (uint n = 0; n < OWN_KEYS / 8; n++)
        {
            float(&x)[4] = scores[n];
            parts[row_tile][dim_part][key_part * (OWN_KEYS / 8) + n][lane]
                = float4(x[0], x[1], x[2], x[3]);
        }
    }

    /// Applies the online softmax to the scores of a tile starting at position `from`. All warps of a
    /// row compute the weights, and each stores a part of them.
    MEMBER void weigh(ARGS, QueryTile& t, uint from, uint lane)
    {
        float scores[KEY_GROUPS][4];
        UNROLL for (uint n = 0; n < KEY_GROUPS; n++)
        {
            float4 sum = parts[row_tile][0][n][lane];
            UNROLL for (uint p = 1; p < DIM_WARPS; p++) sum += parts[row_tile][p][n][lane];
            UNROLL for (uint i = 0; i < 4; i++) scores[n][i] = sum[i];
        }
        float corrections[2];
        rows.weigh(args, t, from, scores, corrections);
        uint part = key_part * DIM_WARPS + dim_part;
        uint* to = (uint*)weights + rows.row * (4 * WEIGHT_PITCH) + lane % 4;
        UNROLL for (uint n = 0; n < KEY_GROUPS; n++)
        {
            if (n % TILE_WARPS != part) continue;
            to[4 * n] = packHalves(scores[n][0], scores[n][1]);
            to[8 * 4 * WEIGHT_PITCH + 4 * n] = packHalves(scores[n][2], scores[n][3]);
        }
        if (part > 0 || lane % 4 > 0) return;
        factors[rows.row] = corrections[0];
        factors[rows.row + 8] = corrections[1];
    }

    /// Adds the values of a tile, times their weights.
    MEMBER void add(const uint4* tile, uint lane)
    {
        float corrections[ROW_TILES][2];
        bool changes = false;
        UNROLL for (uint m = 0; m < ROW_TILES; m++)
            UNROLL for (uint h = 0; h < 2; h++)
            {
                corrections[m][h] = factors[16 * m + 8 * h + lane / 4];
                changes = changes || corrections[m][h] != 1.0f;
            }
        if (__ballot_sync(0xffffffffu, changes) != 0)
        {
            UNROLL for (uint m = 0; m < ROW_TILES; m++)
                UNROLL for (uint n = 0; n < OWN_COLUMNS / 8; n++)
                    UNROLL for (uint i = 0; i < 4; i++) sums[m][n][i] *= corrections[m][i / 2];
        }
        const uint4* from = tile + VALUES_AT + lane % 16 * VALUE_PITCH + column / 8 + lane / 16;
        const uint4* weight = weights + lane % 16 * WEIGHT_PITCH + lane / 16;
        UNROLL for (uint k = 0; k < BK / 16; k++)
        {
            uint a[ROW_TILES][4];
            UNROLL for (uint m = 0; m < ROW_TILES; m++)
                loadMatrices(a[m], weight + 16 * m * WEIGHT_PITCH + 2 * k);
            UNROLL for (uint n = 0; n < OWN_COLUMNS / 16; n++)
            {
                uint b[4];
                loadMatricesTransposed(b, from + 16 * k * VALUE_PITCH + 2 * n);
                UNROLL for (uint m = 0; m < ROW_TILES; m++)
                {
                    multiplyTiles(sums[m][2 * n], a[m], b[0], b[1]);
                    multiplyTiles(sums[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    /// Stores the output of the rows, or their sums if keys are split.
    MEMBER void store(ARGS, QueryTile& t, uint lane)
    {
        rows.sumTotals();
        UNROLL for (uint h = 0; h < 2; h++)
        {
            uint r = rows.row + 8 * h;
            OnlineSoftmax all = { rows.maximum[h], rows.total[h] };
            if (key_part > 0 || dim_part > 0 || lane % 4 > 0 || r >= t.rows) continue;
#if SPLIT
            storeTotals(args, t, r, all);
#else
            factors[r] = t.finalScale(args, r, all);
#endif
        }
        __syncthreads();
        UNROLL for (uint m = 0; m < ROW_TILES; m++)
            UNROLL for (uint h = 0; h < 2; h++)
            {
                uint r = 16 * m + 8 * h + lane / 4;
                if (r >= t.rows) continue;
                float scale = SPLIT ? 1.0f : factors[r];
                float pairs[OWN_COLUMNS / 8][2];
                UNROLL for (uint n = 0; n < OWN_COLUMNS / 8; n++)
                    UNROLL for (uint i = 0; i < 2; i++) pairs[n][i] = sums[m][n][2 * h + i] * scale;
                storeColumns(args, t, r, column, pairs);
            }
    }
};

SHARED QueryTile saved; // read at the end, so that it takes no registers in the loop

KERNEL(attention_wide, Arguments)
{
    const uint lane = threadIdx.x % SUBGROUP;
    // The last rows of a prompt see most keys, so their tiles start first.
    QueryTile t = findTile(args, blockIdx.x, gridDim.y - 1 - blockIdx.y);
    if (t.rows == 0) return;
    if (threadIdx.x == 0) saved = t;
    Tiles tiles(args, t);
    UNROLL for (uint i = 0; i < STAGES - !KV_Q8; i++) tiles.copy(args, t);
    WarpRows rows;
    rows.load(args, t);
#if KV_Q8
    waitForCopies<STAGES - 1>();
    __syncthreads();
    tiles.convert(0);
    __syncthreads();
    tiles.copy(args, t);
#else
    waitForCopies<AHEAD - 1>();
    __syncthreads();
#endif
    if (tiles.begin < tiles.end) rows.score(tiles.tile(0), lane);
    if (KV_Q8) waitForCopies<AHEAD - 2>();
    __syncthreads();
    if (tiles.begin < tiles.end) rows.weigh(args, t, tiles.begin, lane);
#if KV_Q8
    tiles.convert(1);
#else
    waitForCopies<AHEAD - 2>();
#endif
    __syncthreads();

    for (uint from = tiles.begin; from < tiles.end; from += BK)
    {
        bool more = from + BK < tiles.end;
        tiles.copy(args, t);
        rows.add(tiles.tile(0), lane);
        if (more) rows.score(tiles.tile(1), lane);
        if (KV_Q8) waitForCopies<AHEAD - 2>();
        __syncthreads();
        if (more) rows.weigh(args, t, from + BK, lane);
#if KV_Q8
        tiles.convert(2);
#else
        waitForCopies<AHEAD - 2>();
#endif
        __syncthreads();
        tiles.multiplied++;
    }
    rows.store(args, saved, lane);
}
