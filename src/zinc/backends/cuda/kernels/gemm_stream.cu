// Stream-K GEMM of up to 64 rows of x with up to four matrices of one format and width, by warp
// groups (linear, linear_glu). A tile has 64 ROW_GROUPS rows of a matrix, or of both matrices of a
// gated product. COL_GROUPS warp groups share its columns, by groups of 256 (group_weights.cuh). A
// unit is COL_GROUPS groups of columns of a tile. Each block multiplies an equal share of the units
// of all tiles, from the last to the first. If a share ends within a tile, the block stores its sums
// of that tile early, and the block that has the tile's last unit adds them to its own at the end.
// Rows of x that half_rows has converted are copied to shared memory, STAGES groups of columns for
// each column group.
//   X_TILES     tiles of 8 rows of x
//   PRODUCT     LINEAR, or GLU: each row is multiplied with the same row of two matrices
//   WHOLE       the rows of each matrix are whole tiles
//   OUT_Q8      the output are rows of 8-bit blocks

#include "arguments.h"

using Arguments = GemvArguments;

#define FOLD_MINIMUMS 1

#include "arguments/product_kind.h"
#include "flags.cuh"
#include "floats.cuh"
#include "group_weights.cuh"
#include "parts.cuh"
#include "q8.cuh"
#include "wgmma.cuh"

#define GROUPS (ROW_GROUPS * COL_GROUPS)
#define THREADS (GROUPS * GROUP_THREADS)
#define GROUP_ROWS 64
#define TILE (GROUP_ROWS * ROW_GROUPS)
#define BATCH (8 * X_TILES)
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define SLABS ((COLS + SLAB - 1) / SLAB)
#define COLUMN_GROUPS ((SLABS + 1) / 2)
#define TILE_UNITS ((COLUMN_GROUPS + COL_GROUPS - 1) / COL_GROUPS)
#define SLAB_BYTES (BATCH * SLAB_ROW_BYTES)
#define STAGE_BYTES (2 * SLAB_BYTES)
#define STAGES_BYTES (COL_GROUPS * STAGES * STAGE_BYTES)
#define TILE_SUMS (BATCH * TILE)
#define ROW_SUMS (TILE + 4)          // of a row of x in shared memory, without bank conflicts
#define PAIR (MATRICES == 1 ? 2 : 1) // steps whose products start together
#define AHEAD 2                      // units whose weights are prefetched into L2

DYNAMIC_SHARED(shared, STAGES_BYTES + MATRICES * COL_GROUPS * BATCH * ROW_SUMS * 4);
SHARED float inverses[BATCH];
// A phase of `full` ends when a stage has been copied, one of `empty` when all groups have read it.
SHARED Barrier full[COL_GROUPS][STAGES], empty[COL_GROUPS][STAGES];

/// The units of a block, which it takes from `last` down to `first`.
struct Share
{
    uint first, last;

    MEMBER explicit Share(ARGS)
    {
        const uint units = args.tiles * TILE_UNITS;
        const uint each = units / gridDim.x, more = units % gridDim.x;
        first = blockIdx.x * each + min(blockIdx.x, more);
        last = first + each - (blockIdx.x < more ? 0 : 1);
    }

    /// Returns the block that has a unit.
    static MEMBER uint blockOf(ARGS, uint unit)
    {
        const uint units = args.tiles * TILE_UNITS;
        const uint each = units / gridDim.x, more = units % gridDim.x;
        const uint longer = more * (each + 1); // units of the first blocks, which have one more
        return unit < longer ? unit / (each + 1) : more + (unit - longer) / each;
    }

    MEMBER uint count() const { return last + 1 - first; }
};

/// The place of a warp group in its block.
struct Place
{
    uint row_group, col_group, warp, lane;

    MEMBER explicit Place(uint thread)
    {
        const uint group = thread / GROUP_THREADS;
        row_group = group % ROW_GROUPS;
        col_group = group / ROW_GROUPS;
        warp = thread % GROUP_THREADS / SUBGROUP;
        lane = thread % SUBGROUP;
    }

    /// The first of the warp's 16 rows of a tile.
    MEMBER uint firstRow() const { return row_group * GROUP_ROWS + warp * 16; }
};

/// Makes the barriers of the stages. All threads of the block call it.
DEVICE void makeStages(uint thread)
{
    if (thread == 0)
    {
        for (uint s = 0; s < COL_GROUPS * STAGES; s++)
        {
            initBarrier(&full[0][0] + s, 1);
            initBarrier(&empty[0][0] + s, ROW_GROUPS);
        }
        publishBarriers();
    }
    __syncthreads();
}

/// Returns the group of columns of a unit for a column group. The last unit of a tile may lack some.
DEVICE uint columnsOf(uint unit, uint col_group)
{
    return unit % TILE_UNITS * COL_GROUPS + col_group;
}

/// Returns where columns number `read` of a column group lie in shared memory.
DEVICE uint8_t* stageAt(uint read, uint col_group)
{
    return shared + (col_group * STAGES + read % STAGES) * STAGE_BYTES;
}

/// Copies columns number `read` of a column group to their stage, after all groups have read its
/// previous contents.
DEVICE void copyColumns(const StreamArguments& args, const Share& share, uint read, uint col_group)
{
    if (read >= share.count()) return;
    const uint stage = read % STAGES;
    const uint group = min(columnsOf(share.last - read, col_group), COLUMN_GROUPS - 1);
    const uint bytes = min(2, SLABS - 2 * group) * SLAB_BYTES;
    if (read >= STAGES) waitForPhase(&empty[col_group][stage], read / STAGES - 1);
    arriveExpecting(&full[col_group][stage], bytes);
    const uint8_t* from = args.x + group * STAGE_BYTES;
    copyBulk(stageAt(read, col_group), from, bytes, &full[col_group][stage]);
}

/// The sums of a lane: D of each 8 rows of x, and the factor that scales the sums of a weight row.
struct Sums
{
    float d[X_TILES][4];
    float factors[2];

    MEMBER void clear()
    {
        UNROLL for (uint j = 0; j < X_TILES; j++)
            UNROLL for (uint e = 0; e < 4; e++) d[j][e] = 0;
        UNROLL for (uint h = 0; h < 2; h++) factors[h] = 1.0f;
    }

    /// Rescales the sums to the factors of `weights`, so that their products can be added.
    MEMBER void rescale(const GroupWeights& weights)
    {
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const float scale = factors[h] * weights.inverse(h);
            UNROLL for (uint j = 0; j < X_TILES; j++)
                UNROLL for (uint e = 0; e < 2; e++) d[j][2 * h + e] *= scale;
            factors[h] = weights.factor(h);
        }
    }
};

/// Returns the address of the sum of row i of x and weight row r of a tile, of column group k.
DEVICE float* sumAt(uint matrix, uint k, uint i, uint r)
{
    float* sums = (float*)(shared + STAGES_BYTES);
    return sums + ((matrix * COL_GROUPS + k) * BATCH + i) * ROW_SUMS + r;
}

/// Puts the sums of a group into shared memory.
DEVICE void shareSums(const Sums (&sums)[MATRICES], const Place& place)
{
    const uint row = place.firstRow() + place.lane / 4;
    UNROLL for (uint t = 0; t < MATRICES; t++)
        UNROLL for (uint j = 0; j < X_TILES; j++)
            UNROLL for (uint e = 0; e < 4; e++)
            {
                const uint i = 8 * j + 2 * (place.lane % 4) + e % 2, r = row + 8 * (e / 2);
                *sumAt(t, place.col_group, i, r) = sums[t].d[j][e] * sums[t].factors[e / 2];
            }
}

/// Returns four sums of a row of x over all column groups.
DEVICE float4 blockTotal(uint matrix, uint i, uint r)
{
    float4 sum = *(float4*)sumAt(matrix, 0, i, r);
    UNROLL for (uint k = 1; k < COL_GROUPS; k++) sum += *(float4*)sumAt(matrix, k, i, r);
    return sum;
}

/// Returns the address of four sums of a block for a tile that it shares with later blocks.
DEVICE float4* partialAt(const StreamArguments& args, uint block, uint matrix, uint i, uint r)
{
    return (float4*)(args.partial + (block * MATRICES + matrix) * TILE_SUMS + i * TILE + r);
}

/// Stores the results of weight rows r to r + 3 of a part for row i of x, from their sums.
DEVICE void storeFour(ARGS, const GemvPart& part, uint i, uint r, float4 sum, float4 up)
{
    float4 y = sum * inverses[i];
    UNROLL for (uint e = 0; e < 4; e++)
    {
        if (!WHOLE && r + e >= part.rows) continue;
        if (PRODUCT == GLU) y[e] = gated(args, part, r + e, i, y[e], up[e] * inverses[i]);
        else
        {
            if (part.bias != nullptr) y[e] += part.bias[r + e];
            if (part.residual != nullptr)
                y[e] += ((float*)rowAt(part.residual, i, part.residual_stride))[r + e];
        }
    }
#if OUT_Q8
    if (WHOLE || r < part.rows) storeQ8(rowAt(part.y, i, part.y_stride), part.rows, r, y);
#else
    float* row = (float*)rowAt(part.y, i, part.y_stride) + r;
    UNROLL for (uint e = 0; e < 4; e++)
        if (WHOLE || r + e < part.rows) row[e] = y[e];
#endif
}

/// Stores the block's sums of a tile whose last units belong to a later block.
DEVICE void storePartial(const StreamArguments& args, uint n_x, uint thread)
{
    for (uint t = thread; t < n_x * (TILE / 4); t += THREADS)
    {
        const uint i = t / (TILE / 4), r = t % (TILE / 4) * 4;
        UNROLL for (uint m = 0; m < MATRICES; m++)
            *partialAt(args, blockIdx.x, m, i, r) = blockTotal(m, i, r);
    }
    __syncthreads();
    if (thread == 0) raiseFlag(args.flags + blockIdx.x);
}

/// Stores the results of a tile. Blocks from `from` on have multiplied its earlier units; their
/// sums are added first.
DEVICE void storeTile(const StreamArguments& args, uint tile, uint from, uint n_x, uint thread)
{
    const Arguments& product = args.product;
    const GemvPart& part = partOf(product, tile);
    const uint first_row = (tile - part.first_tile) * TILE;
    for (uint b = from + thread; b < blockIdx.x; b += THREADS) takeFlag(args.flags + b);
    if (from < blockIdx.x) __syncthreads();
    for (uint t = thread; t < n_x * (TILE / 4); t += THREADS)
    {
        const uint i = t / (TILE / 4), r = t % (TILE / 4) * 4;
        float4 totals[MATRICES];
        UNROLL for (uint m = 0; m < MATRICES; m++) totals[m] = blockTotal(m, i, r);
        _Pragma("unroll 4") for (uint b = from; b < blockIdx.x; b++)
            UNROLL for (uint m = 0; m < MATRICES; m++) totals[m] += *partialAt(args, b, m, i, r);
        storeFour(product, part, i, first_row + r, totals[0], totals[MATRICES - 1]);
    }
}

/// Returns where the weights of a unit are, in row `r` of a warp's rows and in row `r` + 8.
DEVICE GroupPlace placeOf(ARGS, uint unit, uint matrix, const Place& place, uint r)
{
    const uint tile = unit / TILE_UNITS;
    const GemvPart& part = partOf(args, tile);
    const uint row = (tile - part.first_tile) * TILE + place.firstRow() + r;
    GroupPlace found;
    found.w = matrix ? shifted(part.w, part.up) : part.w;
    UNROLL for (uint h = 0; h < 2; h++)
        found.rows[h] = WHOLE ? row + 8 * h : min(row + 8 * h, part.rows - 1);
    found.group = min(columnsOf(unit, place.col_group), COLUMN_GROUPS - 1);
    return found;
}

/// Starts to add the products of a slab of weights with a slab of x in shared memory. PAIR steps are
/// converted while those before them are multiplied; `a` holds their operands.
DEVICE void multiplySlab(const GroupWeights& weights, const StoredGroup& stored, uint i,
    MatrixPlace x, Sums& sums, uint (&a)[2][PAIR][4])
{
    UNROLL for (uint step = 0; step < STEPS; step += PAIR)
    {
        uint (&operands)[PAIR][4] = a[step / PAIR % 2];
        waitForProducts<1>();
        UNROLL for (uint s = 0; s < PAIR; s++) weights.fragment(stored, i, step + s, operands[s]);
        fenceProducts();
        UNROLL for (uint s = 0; s < PAIR; s++)
            multiplyGroup(sums.d, operands[s], shifted(x, (step + s) * 256));
        commitProducts();
    }
}

/// Prefetches the weights of the block's unit number `read` into L2.
DEVICE void prefetch(ARGS, const Share& share, uint read, const Place& place)
{
    if (read >= share.count()) return;
    const uint matrix = MATRICES == 1 ? 0 : place.lane / 16;
    const GroupPlace found = placeOf(args, share.last - read, matrix, place, place.lane % 16);
    if (MATRICES == 2 || place.lane < 16) prefetchGroup(found);
}

EARLY_KERNEL(gemm_stream, StreamArguments)
{
    const uint thread = threadIdx.x;
    const Place place(thread);
    const Arguments& product = args.product;
    const Share share(product);
    loadFormatTables(product.first.w, thread, THREADS);
    makeStages(thread);
    StoredGroup stored[MATRICES];
    const auto load = [&](uint unit, uint t, uint i)
    { stored[t].load(placeOf(product, unit, t, place, place.lane / 4), place.lane % 4, i); };
    UNROLL for (uint t = 0; t < MATRICES; t++)
        UNROLL for (uint i = 0; i < 2; i++) load(share.last, t, i);
    UNROLL for (uint read = 1; read < AHEAD; read++) prefetch(product, share, read, place);
    waitForInputs();
    const bool copies = place.row_group == 0 && thread % GROUP_THREADS == 0;
    if (copies)
        for (uint s = 0; s < STAGES; s++) copyColumns(args, share, s, place.col_group);
    const uint n_x = rowsOf(product.step, product.dim);
    if (thread < BATCH) inverses[thread] = args.inverses[min(thread, n_x - 1)];
    Sums sums[MATRICES];
    UNROLL for (uint t = 0; t < MATRICES; t++) sums[t].clear();
    uint a[2][PAIR][4];
    uint last = share.last; // of the tile's units
    _Pragma("unroll 1") for (uint read = 0; read < share.count(); read++)
    {
        const uint unit = share.last - read, stage = read % STAGES;
        const uint group = columnsOf(unit, place.col_group);
        const bool exists = COLUMN_GROUPS % COL_GROUPS == 0 || group < COLUMN_GROUPS;
        const MatrixPlace x = placeOfMatrix(stageAt(read, place.col_group));
        prefetch(product, share, read + AHEAD, place);
        waitForPhase(&full[place.col_group][stage], read / STAGES);
        UNROLL for (uint t = 0; t < MATRICES; t++)
        {
            GroupWeights weights(stored[t], place.lane % 4);
            if (exists) sums[t].rescale(weights);
            UNROLL for (uint i = 0; i < 2; i++)
            {
                weights.prepare(stored[t], i);
                if (exists && (SLABS % 2 == 0 || i == 0 || 2 * group + i < SLABS))
                    multiplySlab(weights, stored[t], i, shifted(x, i * SLAB_BYTES), sums[t], a);
                if (unit > share.first) load(unit - 1, t, i);
            }
        }
        waitForProducts<0>();
        if (thread % GROUP_THREADS == 0) arrive(&empty[place.col_group][stage]);
        // Refill the previous stage, which the other groups have most likely read by now.
        if (copies && read > 0) copyColumns(args, share, read - 1 + STAGES, place.col_group);
        if (unit % TILE_UNITS != 0 && unit != share.first) continue;
        const uint tile = unit / TILE_UNITS, from = Share::blockOf(product, tile * TILE_UNITS);
        shareSums(sums, place);
        __syncthreads();
        if (last % TILE_UNITS != TILE_UNITS - 1) storePartial(args, n_x, thread);
        else storeTile(args, tile, from, n_x, thread);
        __syncthreads();
        UNROLL for (uint t = 0; t < MATRICES; t++) sums[t].clear();
        last = unit - 1;
    }
}
