// GEMV of BATCH rows of x with up to four matrices of one format and width (linear, linear_glu). A
// tile has TILE rows of one matrix, ROWS of them for each warp, and KSPLIT warps split the columns
// of a row. A block multiplies every gridDim.x-th tile and stores all results at its end, so that its
// warps synchronise only once. A lane keeps DEEP units of each of its rows in flight, across tiles
// too. It loads the first ones before the kernel waits for x.
//   BATCH       rows of x; the step may have fewer
//   TILES       most tiles of a block
//   PRODUCT     LINEAR, or GLU: each row is multiplied with the same row of two matrices
//   NORM        x is one float32 row, and each block normalises and quantises it
//   WHOLE       the rows of each matrix are whole tiles
//   OUT_Q8      the output is stored as rows of 8-bit blocks

#include "arguments.h"

using Arguments = GemvArguments;

#include "arguments/product_kind.h"
#include "floats.cuh"
#include "parts.cuh"
#include "product.cuh"
#include "q8.cuh"
#include "sums.cuh"

#define THREADS (WAVES * SUBGROUP)

#define TILE (ROWS * WAVES / KSPLIT)
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define SUMS (MATRICES * ROWS * BATCH) // sums per lane
#define UNITS ((COLS + UNIT - 1) / UNIT) // units per row
#define STRIDE (KSPLIT * SUBGROUP)
#define LANE_UNITS ((UNITS + STRIDE - 1) / STRIDE) // units of a row per lane

SHARED float partial[TILES][BATCH][MATRICES][KSPLIT][TILE];

#if NORM
#include "norm_row.cuh" // needs THREADS

SHARED uint4 normalisedRow[(COLS + COLS / 4) / 16]; // 8-bit blocks (q8.cuh)

/// Normalises and quantises x, given the thread's weights of the norm. Returns the row.
DEVICE uint8_t* normalise(ARGS, float4 (&columns)[OWN_FOURS], uint thread)
{
    normaliseOwn(args, columns, thread);
    UNROLL for (uint i = 0; i < OWN_FOURS; i++)
    {
        const uint four = i * THREADS + thread;
        if (four >= ROW_FOURS) break;
        storeQ8((uint8_t*)normalisedRow, COLS, 4 * four, columns[i]);
    }
    __syncthreads();
    return (uint8_t*)normalisedRow;
}
#endif

/// The first unit of a warp's rows, and how many of them there are.
struct WarpRows
{
    uint unit, count;

    /// Returns the first unit of row r. Rows past the last one repeat it.
    MEMBER uint unitOf(uint r) const { return unit + (WHOLE ? r : min(r, count - 1)) * UNITS; }
};

DEVICE WarpRows findRows(uint first, uint end)
{
    first = WHOLE ? first : min(first, end - 1);
    return { first * UNITS, WHOLE ? ROWS : min(end - first, ROWS) };
}

/// The weights of a lane's rows at one position: a unit of each row.
struct Column
{
    PendingWeights weights[MATRICES][ROWS];

    MEMBER void load(const Matrix (&w)[MATRICES], WarpRows rows, uint unit)
    {
        if (UNITS % (DEEP * STRIDE) != 0) unit = min(unit, UNITS - 1);
        UNROLL for (uint m = 0; m < MATRICES; m++)
            UNROLL for (uint r = 0; r < ROWS; r++)
                weights[m][r] = prefetchWeights(w[m], rows.unitOf(r) + unit);
    }

    /// Adds the products with the rows of x, row b of which starts at x[b].
    MEMBER void addTo(float (&sums)[SUMS], uint8_t* const (&x)[BATCH], uint unit)
    {
        if (unit >= UNITS) return;
        decltype(finishWeights(weights[0][0], unit)) w[MATRICES][ROWS];
        UNROLL for (uint m = 0; m < MATRICES; m++)
            UNROLL for (uint r = 0; r < ROWS; r++) w[m][r] = finishWeights(weights[m][r], unit);
        UNROLL for (uint b = 0; b < BATCH; b++)
        {
            const Activations columns = loadActivations(x[b], unit, COLS);
            UNROLL for (uint m = 0; m < MATRICES; m++)
                UNROLL for (uint r = 0; r < ROWS; r++)
                    sums[(b * MATRICES + m) * ROWS + r] += dotUnits(w[m][r], columns);
        }
    }
};

/// The rows of a tile that a warp multiplies, from row `slot` of the tile on.
struct Tile
{
    Matrix w[MATRICES];
    WarpRows rows;

    MEMBER Tile(ARGS, uint tile, uint slot)
    {
        const GemvPart& part = partOf(args, tile);
        w[0] = part.w;
        if (MATRICES > 1) w[MATRICES - 1] = shifted(part.w, part.up);
        rows = findRows((tile - part.first_tile) * TILE + slot, part.rows);
    }
};

/// Returns the sum over all splits for row t of the block's tile i, row b of x and matrix m.
DEVICE float total(uint i, uint t, uint b, uint m)
{
    float sum = partial[i][b][m][0][t];
    UNROLL for (uint k = 1; k < KSPLIT; k++) sum += partial[i][b][m][k][t];
    return sum;
}

/// Returns the sum of bias and residual, which is added to the product of `row` and row b of x.
DEVICE float addend(const GemvPart& part, uint row, uint b)
{
    float sum = part.bias == nullptr ? 0.0f : part.bias[row];
    if (part.residual != nullptr)
        sum += ((float*)rowAt(part.residual, b, part.residual_stride))[row];
    return sum;
}

/// Output number `index` of a block: row t of the block's tile i, which is row `row` of its part,
/// for row b of x.
struct Output
{
    uint i, t, b, row;
    const GemvPart* part;

    MEMBER Output(ARGS, uint index)
    {
        i = index / (BATCH * TILE);
        t = index % TILE;
        b = index / TILE % BATCH;
        const uint tile = blockIdx.x + i * gridDim.x;
        part = &partOf(args, tile);
        row = (tile - part->first_tile) * TILE + t;
    }

    MEMBER bool exists(uint n_x) const { return b < n_x && row < part->rows; }
    MEMBER uint8_t* y() const { return rowAt(part->y, b, part->y_stride); }
};

/// Stores the outputs of the block's `n_tiles` tiles for `n_x` rows of x. `added` is the addend of
/// output number `thread`.
DEVICE void storeTiles(ARGS, uint n_tiles, uint n_x, float added, uint thread)
{
    const uint outputs = n_tiles * BATCH * TILE;
    for (uint index = thread; index < outputs; index += THREADS)
    {
        const Output out(args, index);
        if (!out.exists(n_x)) continue;
        float y = total(out.i, out.t, out.b, 0);
#if PRODUCT == GLU
        y = gated(args, *out.part, out.row, out.b, y, total(out.i, out.t, out.b, 1));
#else
        y += index == thread ? added : addend(*out.part, out.row, out.b);
#endif
#if OUT_Q8
        partial[out.i][out.b][0][0][out.t] = y;
#else
        ((float*)out.y())[out.row] = y;
#endif
    }
#if OUT_Q8
    __syncthreads();
    for (uint index = 4 * thread; index < outputs; index += 4 * THREADS)
    {
        const Output out(args, index);
        if (!out.exists(n_x)) continue;
        const float* y = &partial[out.i][out.b][0][0][out.t];
        storeQ8(out.y(), out.part->rows, out.row, float4(y[0], y[1], y[2], y[3]));
    }
#endif
}

EARLY_KERNEL(gemv, Arguments)
{
    const uint thread = threadIdx.x, wave = thread / SUBGROUP, lane = thread % SUBGROUP;
    const uint split = wave % KSPLIT, slot = wave / KSPLIT * ROWS, unit = split * SUBGROUP + lane;
    const uint n_x = BATCH == 1 ? 1 : rowsOf(args.step, args.dim);
    const uint n_tiles = (args.tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    loadFormatTables(args.first.w, thread, THREADS);
    Tile tile(args, blockIdx.x, slot);
    Column columns[DEEP];
    UNROLL for (uint d = 0; d < DEEP; d++) columns[d].load(tile.w, tile.rows, unit + d * STRIDE);

#if NORM
    float4 norm[OWN_FOURS];
    loadNorm(args, norm, thread);
    waitForInputs();
    uint8_t* const x[BATCH] = { normalise(args, norm, thread) };
#else
    waitForInputs();
    uint8_t* x[BATCH];
    UNROLL for (uint b = 0; b < BATCH; b++) x[b] = rowAt(args.x, min(b, n_x - 1), args.x_stride);
#endif
    float added = 0;
    if (PRODUCT == LINEAR && thread < n_tiles * BATCH * TILE)
    {
        const Output own(args, thread);
        if (own.exists(n_x)) added = addend(*own.part, own.row, own.b);
    }
    _Pragma("unroll 1") for (uint i = 0; i < n_tiles; i++)
    {
        const bool is_last = i + 1 == n_tiles;
        float sums[SUMS];
        UNROLL for (uint s = 0; s < SUMS; s++) sums[s] = 0;
        _Pragma("unroll 1") for (uint at = 0; at < LANE_UNITS; at += DEEP)
        {
            const bool ends = at + DEEP >= LANE_UNITS; // the next loads are those of the next tile
            if (ends && !is_last) tile = Tile(args, blockIdx.x + (i + 1) * gridDim.x, slot);
            UNROLL for (uint d = 0; d < DEEP; d++)
            {
                const uint u = unit + (at + d) * STRIDE;
                columns[d].addTo(sums, x, u);
                if (ends ? !is_last : at + d + DEEP < LANE_UNITS)
                    columns[d].load(tile.w, tile.rows, ends ? unit + d * STRIDE : u + DEEP * STRIDE);
            }
        }
        ReducedSums<SUMS> reduced = reduceSums<SUMS>(sums, lane);
        UNROLL for (uint k = 0; k < reduced.COUNT; k++)
        {
            const uint s = reduced.first + k, m = s / ROWS % MATRICES, row = slot + s % ROWS;
            if (reduced.is_owner) partial[i][s / (MATRICES * ROWS)][m][split][row] = reduced.sums[k];
        }
    }
    __syncthreads();
    storeTiles(args, n_tiles, n_x, added, thread);
}
