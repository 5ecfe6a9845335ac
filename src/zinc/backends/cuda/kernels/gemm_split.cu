// Split-K GEMM of 17 to 64 rows of x with up to four matrices of one format and width, by warp
// groups (linear, linear_glu). A tile has 64 weight rows for each of ROW_GROUPS warp groups: of a
// matrix, or 32 of both matrices of a gated product. The blocks of a cluster split the columns of a
// tile, which are multiplied in groups of 256 (group_weights.cuh), and each block stores a share of
// the tile's rows (cluster_sums.cuh). Clusters take every n-th tile. Rows of x that half_rows has
// converted are copied to shared memory, STAGES - 1 groups ahead.
//   X_TILES     tiles of 8 rows of x
//   CLUSTER     blocks of a cluster, if there are several
//   PRODUCT     LINEAR, or GLU: each row is multiplied with the same row of two matrices
//   WHOLE       the rows of each matrix are whole tiles
//   OUT_Q8      the output is stored as rows of 8-bit blocks

#include "arguments.h"

using Arguments = GemvArguments;

#define FOLD_MINIMUMS 1

#include "arguments/product_kind.h"
#include "cluster_sums.cuh"
#include "floats.cuh"
#include "group_weights.cuh"
#include "parts.cuh"
#include "q8.cuh"
#include "wgmma.cuh"

#define THREADS (ROW_GROUPS * GROUP_THREADS)
// A lane holds two weight rows: rows r and r + 8 of a matrix, or row r of both.
#define GROUP_ROWS (PRODUCT == GLU ? 32 : 64) // weight rows of a warp group, of each matrix
#define TILE (GROUP_ROWS * ROW_GROUPS)
#define BATCH (8 * X_TILES)
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define SLABS ((COLS + SLAB - 1) / SLAB)
#define COLUMN_GROUPS ((SLABS + 1) / 2)
#define BLOCK_GROUPS ((COLUMN_GROUPS + BLOCKS - 1) / BLOCKS) // groups per block, at most
#define SLAB_BYTES (BATCH * SLAB_ROW_BYTES)
#define STAGE_BYTES (2 * SLAB_BYTES)
#define STAGES_BYTES (STAGES * STAGE_BYTES)
#define ROW_SUMS (TILE + 4) // floats from row to row of x in shared memory, without bank conflicts
#define SUMS_BYTES (MATRICES * BATCH * ROW_SUMS * 4)
#define UNIT_ROWS (OUT_Q8 ? 32 : 4) // weight rows whose results are stored together
#define SHARE_ROWS ((TILE / UNIT_ROWS + BLOCKS - 1) / BLOCKS * UNIT_ROWS) // weight rows per block, at most
#define PAIR 2 // steps whose products start together

DYNAMIC_SHARED(shared, STAGES_BYTES + SUMS_BYTES);
SHARED float inverses[BATCH];
// A phase of `full` ends when a stage has been copied, one of `empty` when all groups have read it.
SHARED Barrier full[STAGES], empty[STAGES];

/// The work of a block: `count` groups of columns from `first` on, of every `stride`-th tile.
struct Work
{
    uint tile, stride, first, count;

    MEMBER Work()
        : tile(blockIdx.x / BLOCKS)
        , stride(gridDim.x / BLOCKS)
        , first(clusterRank() * BLOCK_GROUPS)
        , count(min(BLOCK_GROUPS, COLUMN_GROUPS - first))
    {
    }
};

/// The place of a warp in its block.
struct Place
{
    uint group, warp, lane;

    MEMBER explicit Place(uint thread)
    {
        // The shuffle tells the compiler that all lanes have the same number.
        group = __shfl_sync(0xffffffffu, thread / GROUP_THREADS, 0);
        warp = thread % GROUP_THREADS / SUBGROUP;
        lane = thread % SUBGROUP;
    }

    /// The lane's first row of a tile.
    MEMBER uint row() const { return group * GROUP_ROWS + warp * (GROUP_ROWS / 4) + lane / 4; }
};

/// Makes the barriers of the stages. All threads of the block call it.
DEVICE void makeStages(uint thread)
{
    if (thread == 0)
    {
        for (uint s = 0; s < STAGES; s++)
        {
            initBarrier(full + s, 1);
            initBarrier(empty + s, ROW_GROUPS);
        }
        publishBarriers();
    }
    __syncthreads();
}

/// A stage, and how often its contents were replaced.
struct Stage
{
    uint number = 0, turn = 0;

    MEMBER void advance()
    {
        if (++number < STAGES) return;
        number = 0;
        turn++;
    }
};

/// Copies the columns of x that a block multiplies to the stages, group by group and again for each
/// tile. One thread of the block does this.
struct Copies
{
    uint left, i = 0; // left: groups still to copy; i: the next group of the tile
    Stage at;

    MEMBER explicit Copies(uint groups) : left(groups) {}

    /// Starts the next copy, after all warp groups have read the previous contents of its stage.
    MEMBER void next(const SplitArguments& args, const Work& work)
    {
        if (left == 0) return;
        left--;
        if (at.turn > 0) waitForPhase(empty + at.number, at.turn - 1);
        arriveExpecting(full + at.number, STAGE_BYTES);
        const uint8_t* from = args.x + (work.first + i) * STAGE_BYTES;
        copyBulk(shared + at.number * STAGE_BYTES, from, STAGE_BYTES, full + at.number);
        at.advance();
        if (++i == work.count) i = 0;
    }
};

/// The sums of a lane: D of `multiplyGroup` for every 8 rows of x, and the factor of each weight row,
/// which scales its sums.
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

/// Returns the address of the sum of row i of x and weight row r of a tile.
DEVICE float* sumAt(uint matrix, uint i, uint r)
{
    return (float*)(shared + STAGES_BYTES) + (matrix * BATCH + i) * ROW_SUMS + r;
}

/// Writes the sums of a warp to shared memory.
DEVICE void writeSums(const Sums& sums, const Place& place)
{
    UNROLL for (uint j = 0; j < X_TILES; j++)
        UNROLL for (uint e = 0; e < 4; e++)
        {
            const uint i = 8 * j + 2 * (place.lane % 4) + e % 2, h = e / 2;
            const uint r = place.row() + (PRODUCT == GLU ? 0 : 8 * h);
            *sumAt(PRODUCT == GLU ? h : 0, i, r) = sums.d[j][e] * sums.factors[h];
        }
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

/// Stores share number `share` of the results of a tile.
DEVICE void storeTile(ARGS, uint tile, uint share, uint n_x, uint thread)
{
    const GemvPart& part = partOf(args, tile);
    const uint first_row = (tile - part.first_tile) * TILE;
    for (uint t = thread; t < n_x * (SHARE_ROWS / 4); t += THREADS)
    {
        const uint i = t / (SHARE_ROWS / 4), r = share * SHARE_ROWS + t % (SHARE_ROWS / 4) * 4;
        if (TILE % SHARE_ROWS != 0 && r >= TILE) continue;
        float4 totals[MATRICES];
        UNROLL for (uint m = 0; m < MATRICES; m++) totals[m] = clusterSum(sumAt(m, i, r), tile);
        storeFour(args, part, i, first_row + r, totals[0], totals[MATRICES - 1]);
    }
}

/// A step of a block: a group of columns of a tile.
struct Step
{
    uint tile, i = 0; // i: of the tile's groups that the block multiplies
    uint row;          // the lane's first row of the matrix

    MEMBER Step(ARGS, uint tile, const Place& place) : tile(tile) { findRow(args, place); }

    MEMBER void findRow(ARGS, const Place& place)
    {
        row = (PARTS > 1 ? tile - partOf(args, tile).first_tile : tile) * TILE + place.row();
    }

    MEMBER void advance(ARGS, const Work& work, const Place& place)
    {
        if (++i < work.count) return;
        i = 0;
        tile += work.stride;
        if (tile < args.tiles) findRow(args, place);
    }

    /// Returns where the weights of the step are.
    MEMBER GroupPlace weights(ARGS, const Work& work) const
    {
        const GemvPart& part = partOf(args, tile);
        GroupPlace found;
        found.w = part.w;
        found.second = PRODUCT == GLU ? part.up : 0;
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const uint at = PRODUCT == GLU ? row : row + 8 * h;
            found.rows[h] = WHOLE ? at : min(at, part.rows - 1);
        }
        found.group = work.first + i;
        return found;
    }
};

/// Starts to add the products of a slab of weights and a slab of x in shared memory. PAIR steps are
/// converted to operands in `a` while the previous steps are multiplied.
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

EARLY_KERNEL(gemm_split, SplitArguments)
{
    const uint thread = threadIdx.x;
    const Place place(thread);
    const Arguments& product = args.product;
    const Work work;
    loadFormatTables(product.first.w, thread, THREADS);
    makeStages(thread);
    Step now(product, work.tile, place);
    StoredGroup stored;
    UNROLL for (uint i = 0; i < 2; i++) stored.load(now.weights(product, work), place.lane % 4, i);
    waitForInputs();
    const uint n_tiles = (product.tiles - work.tile + work.stride - 1) / work.stride;
    Copies copies(thread == 0 ? n_tiles * work.count : 0);
    for (uint i = 0; i < STAGES - 1; i++) copies.next(args, work);
    const uint n_x = rowsOf(product.step, product.dim);
    if (thread < BATCH) inverses[thread] = args.inverses[min(thread, n_x - 1)];
    Sums sums;
    sums.clear();
    uint a[2][PAIR][4];
    Stage at;
    _Pragma("unroll 1") while (now.tile < product.tiles)
    {
        const MatrixPlace x = placeOfMatrix(shared + at.number * STAGE_BYTES);
        Step next = now;
        next.advance(product, work, place);
        const bool has_next = next.tile < product.tiles;
        GroupWeights weights(stored, place.lane % 4);
        waitForPhase(full + at.number, at.turn);
        sums.rescale(weights);
        const GroupPlace refill = next.weights(product, work);
        UNROLL for (uint i = 0; i < 2; i++)
        {
            weights.prepare(stored, i);
            multiplySlab(weights, stored, i, shifted(x, i * SLAB_BYTES), sums, a);
            if (has_next) stored.load(refill, place.lane % 4, i);
        }
        copies.next(args, work);
        waitForProducts<0>();
        if (thread % GROUP_THREADS == 0) arrive(empty + at.number);
        at.advance();
        const uint tile = now.tile;
        now = next;
        if (next.tile == tile) continue;
        writeSums(sums, place);
        __syncthreads();
        shareSums(shared + STAGES_BYTES, SUMS_BYTES, tile);
        for (uint i = firstShare(); i < endShare(); i++) storeTile(product, tile, i, n_x, thread);
        __syncthreads();
        endSharing(tile);
        sums.clear();
    }
}
