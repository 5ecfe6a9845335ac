// GEMM of few rows of x on tensor cores (linear, linear_glu), with up to four matrices of the same
// format and width. A tile has 16 rows of one matrix, or of both matrices of a gated product. A
// block multiplies every gridDim.x-th stripe of tiles. Its warps split the columns in groups of 256
// (split-K). A warp converts a group of x once for ROUND tiles and keeps its partial sums in shared
// memory, so warps synchronise only at the end of a round.
//   X_TILES     tiles of 8 rows of x, multiplied as float16
//   BYTES       1: up to four rows of x are multiplied as 8-bit integers instead
//   ROUND       tiles whose partial sums are in shared memory at once
//   STAGES      weight groups per warp in shared memory; 0: one group in registers
//   BUFFER_X    1: each warp prefetches its next group of x to shared memory
//   PRODUCT     LINEAR, or GLU: each row is multiplied with the same row of two matrices
//   WHOLE       1: the rows of each matrix are a multiple of 16
//   OUT_Q8      1: the output is stored as rows of Q8 blocks
//   NORM_X      1: rows of x lack the scale of their norm (unscaled_rows.cuh)
//   NORM_Y      1: the output is also stored as rows without that scale

#include "arguments.h"

using Arguments = GemvArguments;

#include "arguments/product_kind.h"
#if BYTES
#include "byte_groups.cuh"
#else
#include "column_groups.cuh"
#endif
#include "floats.cuh"
#include "parts.cuh"
#include "q8.cuh"

#define THREADS (WARPS * SUBGROUP)
#include "unscaled_rows.cuh"

#define TILE 16
#define BY_BLOCKS (OUT_Q8 || NORM_Y) // results are stored in blocks of 32
#define STRIPE (BY_BLOCKS ? 32 / TILE : 1) // neighbouring tiles whose outputs form whole blocks
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define GROUPS ((UNITS + GROUP_UNITS - 1) / GROUP_UNITS) // groups per row
#define TURNS ((GROUPS + WARPS - 1) / WARPS)             // groups of a row per warp
#define SLOTS (WARPS + (PRODUCT == LINEAR))              // one for the sums of each warp, one for residuals
#define TILE_SUMS (TILE * BATCH)

#define SUMS_BYTES (ROUND * MATRICES * SLOTS * TILE_SUMS * 4)

#if STAGES > 0
#define AHEAD (STAGES - 1) // groups of weights in flight
#define STAGES_BYTES (WARPS * STAGES * GROUP_BYTES)
#else
#define AHEAD 1
#define STAGES_BYTES 0
#endif
DYNAMIC_SHARED(sharedMemory, SUMS_BYTES + STAGES_BYTES + BUFFER_X * WARPS * ROWS_BYTES);
#define AHEAD_TILES ((MATRICES - 1 + AHEAD) / MATRICES)

#if STAGES == 0 && X_TILES > 1
#define UNROLL_MATRICES _Pragma("unroll 1") // unrolled, registers would spill
#else
#define UNROLL_MATRICES UNROLL
#endif
SHARED float scales[NORM_X ? BATCH : 1];              // norm scales of the rows of x
SHARED float normWeights[NORM_Y ? ROUND * TILE : 1]; // weights of the norm of the output

/// Partial sum `index` of a slot, for tile i of a round.
DEVICE float& sumAt(uint i, uint matrix, uint slot, uint index)
{
    return ((float*)sharedMemory)[((i * MATRICES + matrix) * SLOTS + slot) * TILE_SUMS + index];
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

/// The loop position of a warp: one group of columns of tile i of a round, in each matrix. A warp
/// takes all tiles of a turn, then the next turn, then the next round.
struct Step
{
    uint first = 0, turn = 0, i = 0; // first: tile of the round

    MEMBER void advance(const BlockTiles& tiles)
    {
        if (++i < min(tiles.count - first, uint(ROUND))) return;
        i = 0;
        if (TURNS > 1 && ++turn < TURNS) return;
        turn = 0;
        first += ROUND;
    }

    MEMBER bool beginsRound() const { return i + turn == 0; }
    MEMBER uint group(uint warp) const { return warp + turn * WARPS; }
    MEMBER bool exists(uint warp) const { return GROUPS % WARPS == 0 || group(warp) < GROUPS; }
};

/// Returns the location of a lane's weights for a step.
DEVICE GroupPlace placeOf(
    ARGS, const Step& step, uint matrix, const BlockTiles& tiles, uint warp, uint lane)
{
    const uint tile = STRIPE > 1 ? min(tiles.at(step.first + step.i), args.tiles - 1)
                                 : tiles.at(step.first + step.i);
    const GemvPart& part = partOf(args, tile);
    const uint row = (PARTS > 1 ? tile - part.first_tile : tile) * TILE + lane / 4;
    GroupPlace place;
    place.w = matrix ? shifted(part.w, part.up) : part.w;
    UNROLL for (uint h = 0; h < 2; h++)
        place.rows[h] = WHOLE ? row + 8 * h : min(row + 8 * h, part.rows - 1);
    place.group = step.group(warp);
    return place;
}

#if STAGES > 0
/// Ring buffer of a warp's weight groups in shared memory, which are prefetched AHEAD groups ahead.
struct Queue
{
    Step step; // AHEAD groups ahead, if the warp's next group is of its last matrix
    uint8_t *stages, *read, *freed; // read, freed: stages of the next group to read and to copy

    MEMBER Queue(ARGS, const BlockTiles& tiles, uint warp, uint lane)
        : stages(sharedMemory + SUMS_BYTES + warp * (STAGES * GROUP_BYTES))
        , read(stages)
        , freed(stages + AHEAD * GROUP_BYTES)
    {
        UNROLL for (uint s = 0; s < AHEAD; s++)
        {
            start(args, step, s % MATRICES, stages + s * GROUP_BYTES, tiles, warp, lane);
            if (s % MATRICES + 1 == MATRICES) step.advance(tiles);
        }
        if (AHEAD % MATRICES != 0) step.advance(tiles);
    }

    /// Starts the asynchronous copies of a step's group, if the step exists.
    MEMBER static void start(ARGS, const Step& step, uint matrix, uint8_t* stage,
        const BlockTiles& tiles, uint warp, uint lane)
    {
        if (step.first < tiles.count && step.exists(warp))
            StoredGroup::copy(stage, placeOf(args, step, matrix, tiles, warp, lane), lane);
        commitCopies();
    }

    /// Reads the group of a step, and starts the copies of the group AHEAD groups later.
    MEMBER void next(StoredGroup& stored, ARGS, const Step& now, uint matrix,
        const BlockTiles& tiles, uint warp, uint lane)
    {
        waitForCopies<AHEAD - 1>();
        __syncwarp(); // all copies have arrived, and all lanes have read the previous group
        const bool is_ahead = (matrix + AHEAD) / MATRICES == AHEAD_TILES;
        start(args, is_ahead ? step : now, (matrix + AHEAD) % MATRICES, freed, tiles, warp, lane);
        stored.read(read, lane);
        freed = read;
        read += GROUP_BYTES;
        if (read == stages + STAGES * GROUP_BYTES) read = stages;
    }
};
#endif

/// Adds the products of a step to the partial sums of the warp.
DEVICE void addToSums(
    const GroupProducts& products, const GroupRows& x, const Step& step, uint matrix, uint warp, uint lane)
{
    UNROLL for (uint j = 0; j < X_TILES; j++)
    {
        const uint index = LANE_SUMS * (j * SUBGROUP + lane);
        LaneSums& sums = (LaneSums&)sumAt(step.i, matrix, warp, index);
        const LaneSums added = products.of(x, j, lane);
        sums = TURNS > 1 && step.turn > 0 ? sums + added : added;
    }
}

/// One output of a round that begins at tile `first`: row b of x times row `row` of a matrix.
/// Outputs have the order of the sums in shared memory.
struct Output
{
    uint i, index, t, b, row;
    const GemvPart* part;

    MEMBER Output(ARGS, const BlockTiles& tiles, uint first, uint output)
    {
        i = output / TILE_SUMS;
        index = output % TILE_SUMS;
        const SumPlace place(index);
        t = place.t;
        b = place.b;
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
    _Pragma("unroll 1") for (uint output = thread; output < n * TILE_SUMS; output += THREADS)
    {
        const Output out(args, tiles, first, output);
        float& sum = sumAt(out.i, 0, SLOTS - 1, out.index);
        const GemvPart& part = *out.part;
        if (out.exists(n_x) && part.residual != nullptr)
            copySmallAsync<4>(&sum, (float*)rowAt(part.residual, out.b, part.residual_stride) + out.row);
        else sum = 0;
    }
#if NORM_Y
    _Pragma("unroll 1") for (uint i = thread; i < n * TILE; i += THREADS)
    {
        const uint col = tiles.at(first + i / TILE) * TILE + i % TILE;
        if (args.norm == nullptr) normWeights[i] = 1.0f;
        else copySmallAsync<4>(normWeights + i, (float*)args.norm + col);
    }
#endif
    if (STAGES == 0) commitCopies(); // with stages, the copies of the next weights commit them
}

/// Stores the outputs of `n` tiles for `n_x` rows of x.
DEVICE void storeTiles(ARGS, const BlockTiles& tiles, uint first, uint n, uint n_x, uint thread)
{
    _Pragma("unroll 1") for (uint output = thread; output < n * TILE_SUMS; output += THREADS)
    {
        const Output out(args, tiles, first, output);
        if (!out.exists(n_x)) continue;
        const float scale = NORM_X ? scales[out.b] : 1.0f;
        float y = out.total(0) * scale;
        if (PRODUCT == GLU)
            y = gated(args, *out.part, out.row, out.b, y, out.total(MATRICES - 1) * scale);
        else if (out.part->bias != nullptr) y += out.part->bias[out.row];
#if BY_BLOCKS
        sumAt(out.i, 0, 0, out.index) = y; // overwrites a sum that only this thread reads
#else
        ((float*)rowAt(out.part->y, out.b, out.part->y_stride))[out.row] = y;
#endif
    }
#if BY_BLOCKS
    __syncthreads();
    const uint fours = n * TILE / 4, cols = args.first.rows;
    _Pragma("unroll 1") for (uint index = thread; index < n_x * fours; index += THREADS)
    {
        const uint b = index / fours, at = index % fours * 4;
        const uint col = tiles.at(first + at / TILE) * TILE + at % TILE;
        float4 four;
        UNROLL for (uint e = 0; e < 4; e++)
            four[e] = sumAt(at / TILE, 0, 0, SumPlace::indexOf((at + e) % TILE, b));
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
    loadFormatTables(args.first.w, thread, THREADS);
    Step step;
    StoredGroup stored;
    const GroupPlace begin = placeOf(args, step, 0, tiles, warp, lane);
#if STAGES > 0
    Queue queue(args, tiles, warp, lane);
    if (step.exists(warp)) stored.loadScales(begin, lane % 4);
#else
    UNROLL for (uint i = 0; i < 2; i++)
        if (step.exists(warp)) stored.load(begin, lane % 4, i);
#endif
    waitForInputs();
    GroupRows x;
#if NORM_X
    RowSquares squares;
    squares.load(args.x, args.x_stride, n_x, warp, lane);
#endif
    uint8_t* nextRows = sharedMemory + SUMS_BYTES + STAGES_BYTES + BUFFER_X * warp * ROWS_BYTES;
    bool is_first = true;
    _Pragma("unroll 1") while (step.first < tiles.count)
    {
        const uint first = step.first, n = min(tiles.count - first, uint(ROUND));
        if (PRODUCT == LINEAR && step.beginsRound()) copyResiduals(args, tiles, first, n, n_x, thread);
        const bool exists = step.exists(warp);
        if (exists && (TURNS > 1 ? step.i == 0 : is_first))
        {
            StoredRows loaded;
            if (!BUFFER_X || is_first)
            {
                const auto rowOf = [&](uint b) { return rowAt(args.x, min(b, n_x - 1), args.x_stride); };
                loaded.load(rowOf, step.group(warp), lane);
            }
            else
            {
                waitForCopies<0>();
                __syncwarp();
                loaded.read(nextRows, lane);
            }
            x.convert(loaded, lane);
        }
        if (BUFFER_X && step.i == 0)
        {
            Step after = step;
            after.turn = (step.turn + 1) % TURNS;
            if (after.turn == 0) after.first += ROUND;
            __syncwarp(); // all lanes have read the previous rows
            if (after.first < tiles.count && after.exists(warp))
                copyRows(nextRows, args.x, args.x_stride, n_x, after.group(warp), lane);
            if (STAGES == 0) commitCopies();
        }
        Step next = step;
        next.advance(tiles);
        UNROLL_MATRICES for (uint m = 0; m < MATRICES; m++)
        {
            const Step& following = m + 1 < MATRICES ? step : next;
            const bool more = following.first < tiles.count && following.exists(warp);
            const GroupPlace place = placeOf(args, following, (m + 1) % MATRICES, tiles, warp, lane);
#if STAGES > 0
            queue.next(stored, args, step, m, tiles, warp, lane);
#endif
            GroupProducts products(stored, lane % 4);
#if STAGES > 0
            if (more) stored.loadScales(place, lane % 4);
#endif
            UNROLL for (uint i = 0; i < 2; i++)
            {
                if (exists) products.add(stored, x, i);
                // Load the next weights into the registers that were just multiplied.
                if (STAGES == 0 && more) stored.load(place, lane % 4, i);
            }
            if (exists) addToSums(products, x, step, m, warp, lane);
        }
#if STAGES > 0
        queue.step.advance(tiles);
#endif
#if NORM_X
        if (is_first) squares.store(scales, args.eps, warp, lane);
#endif
        is_first = false;
        step = next;
        if (!next.beginsRound()) continue;
        // Residuals are in the same commit group as the first weights that the round prefetches.
        if (next.first >= tiles.count) waitForCopies<0>();
        else waitForCopies<(AHEAD < ROUND * TURNS ? AHEAD : ROUND * TURNS) - 1>();
        __syncthreads();
        storeTiles(args, tiles, first, n, n_x, thread);
        __syncthreads();
    }
}
