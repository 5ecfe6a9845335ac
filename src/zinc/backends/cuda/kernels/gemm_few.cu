// GEMM of few rows of x with up to four matrices of one format and width on tensor cores (linear,
// linear_glu). A tile has 16 rows of one matrix, or of both matrices of a gated product. A block
// multiplies every gridDim.x-th stripe of tiles. Its WARPS warps split the columns, by groups of
// 256. Each converts a group of x once for ROUND tiles, and adds up its sums of a tile in shared
// memory, so that warps wait for each other only where a round ends.
//   X_TILES     tiles of 8 rows of x
//   ROUND       tiles whose sums are in shared memory at once
//   PRODUCT     LINEAR, or GLU: each row is multiplied with the same row of two matrices
//   WHOLE       the rows of each matrix are whole tiles
//   OUT_Q8      the output are rows of 8-bit blocks
//   NORM_X      x are rows before the scale of a norm (unscaled_rows.cuh)
//   NORM_Y      the output is stored as such rows too

#include "arguments.h"

using Arguments = GemvArguments;

#include "arguments/product_kind.h"
#include "column_groups.cuh"
#include "floats.cuh"
#include "parts.cuh"
#include "q8.cuh"

#define THREADS (WARPS * SUBGROUP)
#define BATCH (8 * X_TILES)
#include "unscaled_rows.cuh"

#define TILE 16
#define BY_BLOCKS (OUT_Q8 || NORM_Y) // results are stored by blocks of 32
#define STRIPE (BY_BLOCKS ? 32 / TILE : 1) // neighbouring tiles, whose outputs are whole blocks
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define GROUPS ((UNITS + GROUP_UNITS - 1) / GROUP_UNITS) // of a row
#define TURNS ((GROUPS + WARPS - 1) / WARPS)             // groups of a row for one warp
#define ROUND_STEPS (MATRICES * ROUND * TURNS)           // of a warp
#define SLOTS (WARPS + (PRODUCT == LINEAR))              // sums of each warp, and residuals
#define LANE_SUMS 4                                      // of a lane, for 8 rows of x
#define TILE_SUMS (X_TILES * SUBGROUP * LANE_SUMS)

DYNAMIC_SHARED(sharedSums, ROUND * MATRICES * SLOTS * TILE_SUMS * 4);
#if BY_BLOCKS
SHARED float results[BATCH][ROUND * TILE];
#endif
SHARED float scales[NORM_X ? BATCH : 1];              // of the rows of x
SHARED float normWeights[NORM_Y ? ROUND * TILE : 1]; // of the norm of the output

/// Number `index` of the sums of a slot for tile i of a round.
DEVICE float& sumAt(uint i, uint matrix, uint slot, uint index)
{
    return ((float*)sharedSums)[((i * MATRICES + matrix) * SLOTS + slot) * TILE_SUMS + index];
}

/// The tiles of a block.
struct BlockTiles
{
    uint count;

    MEMBER explicit BlockTiles(ARGS)
    {
        const uint stripes = (args.tiles + STRIPE - 1) / STRIPE;
        count = (stripes - blockIdx.x + gridDim.x - 1) / gridDim.x * STRIPE;
    }

    MEMBER uint at(uint i) const
    {
        return (blockIdx.x + i / STRIPE * gridDim.x) * STRIPE + i % STRIPE;
    }
};

/// A step of a warp: a group of columns of a matrix of tile i of a round. Steps take all tiles of a
/// turn, then the next turn, then the next round.
struct Step
{
    uint first, turn, i, matrix, group; // first: tile of the round

    MEMBER Step(uint step, uint warp)
    {
        matrix = step % MATRICES;
        i = step / MATRICES % ROUND;
        turn = step / (MATRICES * ROUND) % TURNS;
        first = step / ROUND_STEPS * ROUND;
        group = warp + turn * WARPS;
    }

    MEMBER bool exists() const { return GROUPS % WARPS == 0 || group < GROUPS; }
};

/// Returns where a lane's weights of a step are.
DEVICE GroupPlace placeOf(ARGS, const Step& step, const BlockTiles& tiles, uint lane)
{
    const uint tile = min(tiles.at(step.first + step.i), args.tiles - 1);
    const GemvPart& part = partOf(args, tile);
    const uint row = (tile - part.first_tile) * TILE + lane / 4;
    GroupPlace place;
    place.w = step.matrix ? shifted(part.w, part.up) : part.w;
    UNROLL for (uint h = 0; h < 2; h++)
        place.rows[h] = WHOLE ? row + 8 * h : min(row + 8 * h, part.rows - 1);
    place.group = step.group;
    return place;
}

/// Loads a lane's weights of a step: the units c + 4 i of its group.
DEVICE void load(
    ARGS, StoredGroup& stored, const Step& step, const BlockTiles& tiles, uint lane, uint i)
{
    if (step.exists()) stored.load(placeOf(args, step, tiles, lane), lane % 4, i);
}

/// Adds the products of a step to the warp's sums.
DEVICE void addToSums(
    const GroupProducts& products, const GroupRows& x, const Step& step, uint warp, uint lane)
{
    UNROLL for (uint j = 0; j < X_TILES; j++)
    {
        const uint index = LANE_SUMS * (j * SUBGROUP + lane);
        float4& sums = (float4&)sumAt(step.i, step.matrix, warp, index);
        sums = TURNS > 1 && step.turn > 0 ? sums + products.of(x, j) : products.of(x, j);
    }
}

/// Output `index` of the tiles of a round from tile `first` on, in the order of the sums: row b of x
/// and row `row` of a part.
struct Output
{
    uint i, index, t, b, row;
    const GemvPart* part;

    MEMBER Output(ARGS, const BlockTiles& tiles, uint first, uint output)
    {
        i = output / TILE_SUMS;
        index = output % TILE_SUMS;
        const uint lane = index / LANE_SUMS % SUBGROUP, e = index % LANE_SUMS;
        t = lane / 4 + 8 * (e / 2);
        b = index / (LANE_SUMS * SUBGROUP) * 8 + 2 * (lane % 4) + e % 2;
        const uint tile = tiles.at(first + i);
        part = &partOf(args, tile);
        row = (tile - part->first_tile) * TILE + t;
    }

    MEMBER bool exists(uint n_x) const { return b < n_x && (WHOLE || row < part->rows); }

    /// The sum of all warps, and the residual.
    MEMBER float total(uint matrix) const
    {
        float sum = sumAt(i, matrix, 0, index);
        UNROLL for (uint slot = 1; slot < SLOTS; slot++)
            if (slot < GROUPS || slot >= WARPS) sum += sumAt(i, matrix, slot, index);
        return sum;
    }
};

/// Starts copies of the residuals of the outputs of `n` tiles, and of their norm's weights, to
/// shared memory.
DEVICE void copyResiduals(ARGS, const BlockTiles& tiles, uint first, uint n, uint n_x, uint thread)
{
    for (uint output = thread; output < n * TILE_SUMS; output += THREADS)
    {
        const Output out(args, tiles, first, output);
        float& sum = sumAt(out.i, 0, SLOTS - 1, out.index);
        const GemvPart& part = *out.part;
        if (out.exists(n_x) && part.residual != nullptr)
            copyWordAsync(&sum, (float*)rowAt(part.residual, out.b, part.residual_stride) + out.row);
        else sum = 0;
    }
#if NORM_Y
    for (uint i = thread; i < n * TILE; i += THREADS)
    {
        const uint col = tiles.at(first + i / TILE) * TILE + i % TILE;
        if (args.norm == nullptr) normWeights[i] = 1.0f;
        else copyWordAsync(normWeights + i, (float*)args.norm + col);
    }
#endif
    commitCopies();
}

/// Stores the outputs of `n` tiles for `n_x` rows of x.
DEVICE void storeTiles(ARGS, const BlockTiles& tiles, uint first, uint n, uint n_x, uint thread)
{
    for (uint output = thread; output < n * TILE_SUMS; output += THREADS)
    {
        const Output out(args, tiles, first, output);
        if (!out.exists(n_x)) continue;
        const float scale = NORM_X ? scales[out.b] : 1.0f;
        float y = out.total(0) * scale;
        if (PRODUCT == GLU)
            y = gated(args, *out.part, out.row, out.b, y, out.total(MATRICES - 1) * scale);
        else if (out.part->bias != nullptr) y += out.part->bias[out.row];
#if BY_BLOCKS
        results[out.b][out.i * TILE + out.t] = y;
#else
        ((float*)rowAt(out.part->y, out.b, out.part->y_stride))[out.row] = y;
#endif
    }
#if BY_BLOCKS
    __syncthreads();
    const uint fours = n * TILE / 4, cols = args.first.rows;
    for (uint index = thread; index < n_x * fours; index += THREADS)
    {
        const uint b = index / fours, at = index % fours * 4;
        const uint col = tiles.at(first + at / TILE) * TILE + at % TILE;
        const float* y = &results[b][at];
        const float4 four(y[0], y[1], y[2], y[3]);
        uint8_t* row = rowAt(args.first.y, b, args.first.y_stride);
#if NORM_Y
        storeFour(row, cols, col, four);
        const float* w = normWeights + at;
        storeUnscaled(rowAt(args.unscaled, b, args.unscaled_stride), cols, col, four,
            float4(w[0], w[1], w[2], w[3]));
#else
        storeQ8(row, cols, col, four);
#endif
    }
#endif
}

EARLY_KERNEL(gemm_few, Arguments)
{
    const uint thread = threadIdx.x, warp = thread / SUBGROUP, lane = thread % SUBGROUP;
    const uint n_x = rowsOf(args.step, args.dim);
    const BlockTiles tiles(args);
    const uint steps = (tiles.count + ROUND - 1) / ROUND * ROUND_STEPS;
    loadFormatTables(args.first.w, thread, THREADS);
    StoredGroup stored;
    UNROLL for (uint i = 0; i < 2; i++) load(args, stored, Step(0, warp), tiles, lane, i);
    waitForInputs();
    uint8_t* rows[X_TILES];
    UNROLL for (uint j = 0; j < X_TILES; j++)
        rows[j] = rowAt(args.x, min(8 * j + lane / 4, n_x - 1), args.x_stride);
    GroupRows x;
#if NORM_X
    RowSquares squares;
    squares.load(args.x, args.x_stride, n_x, warp, lane);
#endif
    _Pragma("unroll 1") for (uint at = 0; at < steps; at++)
    {
        const Step step(at, warp);
        const uint n = min(tiles.count - step.first, uint(ROUND));
        if (PRODUCT == LINEAR && at % ROUND_STEPS == 0)
            copyResiduals(args, tiles, step.first, n, n_x, thread);
        const bool is_new = TURNS > 1 ? step.i + step.matrix == 0 : at == 0;
        if (step.exists() && is_new) x.load(rows, step.group, lane);
        // The next weights are loaded as soon as those of this step have been multiplied.
        GroupProducts products(stored, lane % 4);
        UNROLL for (uint i = 0; i < 2; i++)
        {
            if (step.exists()) products.add(stored, x, i);
            if (at + 1 < steps) load(args, stored, Step(at + 1, warp), tiles, lane, i);
        }
        if (step.exists()) addToSums(products, x, step, warp, lane);
#if NORM_X
        if (at == 0) squares.store(scales, args.eps, warp, lane);
#endif
        if ((at + 1) % ROUND_STEPS != 0) continue;
        waitForCopies<0>();
        __syncthreads();
        storeTiles(args, tiles, step.first, n, n_x, thread);
        __syncthreads();
    }
}
