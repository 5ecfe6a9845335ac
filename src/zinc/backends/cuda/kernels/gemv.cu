// GEMV of BATCH rows of x with up to four matrices of one format and width (linear, linear_glu). A
// tile has TILE rows of one matrix, ROWS of them for each warp, and KSPLIT warps split the columns
// of a row. A block multiplies every gridDim.x-th tile. A lane keeps DEEP units of each of its rows
// in flight. Those of the first tile are loaded before the kernel waits for x, those of a later
// tile before the sums of the tile before it are added up.
//   BATCH       rows of x, the last of which the step may lack
//   PARTS       matrices with their own output
//   PRODUCT     LINEAR, or GLU: each row is multiplied with the same row of two matrices
//   ACTIVATION  the ActivationFn of GLU
//   NORM        x is one float32 row, and each block normalises and quantises it
//   WHOLE       the rows of each matrix are whole tiles
//   OUT_Q8      the output are rows of 8-bit blocks

#include "arguments.h"

using Arguments = GemvArguments;

#include "activation.cuh"
#include "arguments/product_kind.h"
#include "floats.cuh"
#include "product.cuh"
#include "q8.cuh"
#include "sums.cuh"

#define THREADS (WAVES * SUBGROUP)

#define TILE (ROWS * WAVES / KSPLIT)
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define SUMS (MATRICES * ROWS * BATCH) // of a lane
#define UNITS ((COLS + UNIT - 1) / UNIT) // of a row
#define STRIDE (KSPLIT * SUBGROUP)
#define LANE_UNITS ((UNITS + STRIDE - 1) / STRIDE) // of a row for one lane

SHARED float partial[BATCH][MATRICES][KSPLIT][TILE];

#if NORM
#include "norm_row.cuh" // takes THREADS

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

    /// The first unit of row r. Past the last row it is repeated.
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

/// The matrix of the rows of a tile.
DEVICE const GemvPart& partOf(ARGS, uint tile)
{
    uint i = 0;
    if (PARTS > 1 && tile >= args.second.first_tile) i = 1;
    if (PARTS > 2 && tile >= args.third.first_tile) i = 2;
    if (PARTS > 3 && tile >= args.fourth.first_tile) i = 3;
    return (&args.first)[i];
}

/// The rows of a tile that a warp multiplies. The tile starts with row `first` of its part.
struct Tile
{
    const GemvPart* part;
    uint first;
    Matrix w[MATRICES];
    WarpRows rows;

    MEMBER Tile(ARGS, uint tile, uint slot) : part(&partOf(args, tile))
    {
        first = (tile - part->first_tile) * TILE;
        w[0] = part->w;
        if (MATRICES > 1) w[MATRICES - 1] = shifted(part->w, part->up);
        rows = findRows(first + slot, part->rows);
    }
};

/// The sum over all splits for row b of x, matrix m and row t of the tile.
DEVICE float total(uint b, uint m, uint t)
{
    float sum = partial[b][m][0][t];
    UNROLL for (uint k = 1; k < KSPLIT; k++) sum += partial[b][m][k][t];
    return sum;
}

DEVICE float gated(ARGS, const GemvPart& part, uint row, uint b, float gate, float up)
{
    if (part.bias != nullptr) gate += part.bias[row];
    if (part.up_bias != nullptr) up += part.up_bias[row];
    const float y = activate(ACTIVATION, gate, up, args.alpha, args.limit);
    return part.factor == nullptr ? y : y * sigmoid(*(float*)rowAt(part.factor, b, part.factor_stride));
}

/// What is added to the product of `row` with row b of x: bias and residual.
DEVICE float addend(const GemvPart& part, uint row, uint b)
{
    float sum = 0;
    if (row >= part.rows) return sum;
    if (part.bias != nullptr) sum += part.bias[row];
    if (part.residual != nullptr)
        sum += ((float*)rowAt(part.residual, b, part.residual_stride))[row];
    return sum;
}

/// Stores the tile of rows from `first` on for `n_x` rows of x. `added` is the addend of row
/// `first` + `thread` and the first row of x.
DEVICE void storeTile(ARGS, const GemvPart& part, uint first, uint n_x, float added, uint thread)
{
#if OUT_Q8
    for (uint i = thread; i < BATCH * TILE / 4; i += THREADS)
    {
        const uint b = i / (TILE / 4), t = 4 * (i % (TILE / 4));
        if (b >= n_x || first + t >= part.rows) continue;
        float4 v;
        UNROLL for (uint j = 0; j < 4; j++)
            v[j] = gated(
                args, part, first + t + j, b, total(b, 0, t + j), total(b, MATRICES - 1, t + j));
        storeQ8(rowAt(part.y, b, part.y_stride), part.rows, first + t, v);
    }
#else
    static_assert(TILE <= THREADS);
    for (uint i = thread; i < BATCH * TILE; i += THREADS)
    {
        const uint b = i / TILE, t = i % TILE, row = first + t;
        if (b >= n_x || row >= part.rows) continue;
        float* y = (float*)rowAt(part.y, b, part.y_stride);
#if PRODUCT == GLU
        y[row] = gated(args, part, row, b, total(b, 0, t), total(b, 1, t));
#else
        y[row] = total(b, 0, t) + (b > 0 ? addend(part, row, b) : added);
#endif
    }
#endif
}

EARLY_KERNEL(gemv, Arguments)
{
    const uint thread = threadIdx.x, wave = thread / SUBGROUP, lane = thread % SUBGROUP;
    const uint split = wave % KSPLIT, slot = wave / KSPLIT * ROWS, unit = split * SUBGROUP + lane;
    const uint n_x = BATCH == 1 ? 1 : rowsOf(args.step, args.dim);
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
    _Pragma("unroll 1") for (uint next = blockIdx.x + gridDim.x;; next += gridDim.x)
    {
        const GemvPart& part = *tile.part;
        const uint first = tile.first;
        const float added
            = PRODUCT == GLU || thread >= TILE ? 0.0f : addend(part, first + thread, 0);
        float sums[SUMS];
        UNROLL for (uint i = 0; i < SUMS; i++) sums[i] = 0;
        _Pragma("unroll 1") for (uint i = 0; i < LANE_UNITS; i += DEEP)
            UNROLL for (uint d = 0; d < DEEP; d++)
            {
                const uint u = unit + (i + d) * STRIDE;
                columns[d].addTo(sums, x, u);
                if (i + d + DEEP < LANE_UNITS)
                    columns[d].load(tile.w, tile.rows, u + DEEP * STRIDE);
            }
        const bool is_last = next >= args.tiles;
        if (!is_last)
        {
            tile = Tile(args, next, slot);
            UNROLL for (uint d = 0; d < DEEP; d++)
                columns[d].load(tile.w, tile.rows, unit + d * STRIDE);
        }

        ReducedSums<SUMS> reduced = reduceSums<SUMS>(sums, lane);
        UNROLL for (uint k = 0; k < reduced.COUNT; k++)
        {
            const uint sum = reduced.first + k, m = sum / ROWS % MATRICES, row = slot + sum % ROWS;
            if (reduced.is_owner) partial[sum / (MATRICES * ROWS)][m][split][row] = reduced.sums[k];
        }
        __syncthreads();
        storeTile(args, part, first, n_x, added, thread);
        if (is_last) return;
        __syncthreads(); // before the next sums replace these
    }
}
