// GEMV of one row of x with up to four matrices of one format and width (linear, linear_glu). A
// block takes TILE rows of one matrix, ROWS of them for each warp, and KSPLIT warps split the
// columns of a row. A lane keeps DEEP units of each of its rows in flight. The first ones are
// loaded before the kernel waits for x.
//   PARTS       matrices with their own output
//   PRODUCT     LINEAR, or GLU: each row is multiplied with the same row of two matrices
//   ACTIVATION  the ActivationFn of GLU
//   NORM        x is float32, and each block normalises and quantises it
//   WHOLE       the rows of each matrix are whole tiles
//   OUT_Q8      the output is a row of 8-bit blocks

#include "arguments.h"

using Arguments = GemvArguments;

#include "activation.cuh"
#include "arguments/product_kind.h"
#include "floats.cuh"
#include "product.cuh"
#include "q8.cuh"
#include "sums.cuh"

#define THREADS (WAVES * SUBGROUP)
#include "reduce.cuh" // takes THREADS

#define TILE (ROWS * WAVES / KSPLIT)
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define UNITS ((COLS + UNIT - 1) / UNIT) // of a row
#define STRIDE (KSPLIT * SUBGROUP)
#define LANE_UNITS ((UNITS + STRIDE - 1) / STRIDE) // of a row for one lane

SHARED float partial[MATRICES][KSPLIT][TILE];

#if NORM
#define ROW_FOURS (COLS / 4)
#define OWN_FOURS ((ROW_FOURS + THREADS - 1) / THREADS) // of a thread

SHARED uint4 normalisedRow[(COLS + COLS / 4) / 16]; // 8-bit blocks (q8.cuh)

/// Loads the thread's weights of the norm.
DEVICE void loadNorm(ARGS, float4 (&weights)[OWN_FOURS], uint thread)
{
    UNROLL for (uint i = 0; i < OWN_FOURS; i++)
    {
        const uint four = i * THREADS + thread;
        weights[i] = 1.0f;
        if (four < ROW_FOURS && args.norm != nullptr)
            weights[i] = loadFour(args.norm, COLS, 4 * four);
    }
}

/// Normalises and quantises x, and returns the row.
DEVICE uint8_t* normalise(ARGS, const float4 (&weights)[OWN_FOURS], uint thread)
{
    float4 x[OWN_FOURS];
    float sum = 0;
    UNROLL for (uint i = 0; i < OWN_FOURS; i++)
    {
        const uint four = i * THREADS + thread;
        x[i] = four < ROW_FOURS ? loadFour(args.x, COLS, 4 * four) : float4(0.0f);
        sum += dot(x[i], x[i]);
    }
    const float scale = rsqrt(sumOfGroup(sum, thread) / float(COLS) + args.eps);
    UNROLL for (uint i = 0; i < OWN_FOURS; i++)
    {
        const uint four = i * THREADS + thread;
        if (four >= ROW_FOURS) break;
        storeQ8((uint8_t*)normalisedRow, COLS, 4 * four, x[i] * scale * weights[i]);
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
        if (UNITS % STRIDE != 0) unit = min(unit, UNITS - 1);
        UNROLL for (uint m = 0; m < MATRICES; m++)
            UNROLL for (uint r = 0; r < ROWS; r++)
                weights[m][r] = prefetchWeights(w[m], rows.unitOf(r) + unit);
    }

    MEMBER void addTo(float (&sums)[MATRICES * ROWS], const Activations& x, uint unit)
    {
        UNROLL for (uint m = 0; m < MATRICES; m++)
            UNROLL for (uint r = 0; r < ROWS; r++)
                sums[m * ROWS + r] += dotUnits(finishWeights(weights[m][r], unit), x);
    }
};

/// The matrix of the block's rows.
DEVICE const GemvPart& partOf(ARGS, uint block)
{
    uint i = 0;
    if (PARTS > 1 && block >= args.second.first_block) i = 1;
    if (PARTS > 2 && block >= args.third.first_block) i = 2;
    if (PARTS > 3 && block >= args.fourth.first_block) i = 3;
    return (&args.first)[i];
}

/// The sum over all splits for matrix m and row t of the tile.
DEVICE float total(uint m, uint t)
{
    float sum = partial[m][0][t];
    UNROLL for (uint k = 1; k < KSPLIT; k++) sum += partial[m][k][t];
    return sum;
}

DEVICE float gated(ARGS, const GemvPart& part, uint row, float gate, float up)
{
    if (part.bias != nullptr) gate += part.bias[row];
    if (part.up_bias != nullptr) up += part.up_bias[row];
    const float y = activate(ACTIVATION, gate, up, args.alpha, args.limit);
    return part.factor == nullptr ? y : y * sigmoid(*part.factor);
}

/// What is added to the product of `row`: bias and residual.
DEVICE float addend(const GemvPart& part, uint row)
{
    float sum = 0;
    if (row >= part.rows) return sum;
    if (part.bias != nullptr) sum += part.bias[row];
    if (part.residual != nullptr) sum += ((float*)part.residual)[row];
    return sum;
}

/// Stores the tile of rows from `first` on. `added` is the addend of row `first` + `thread`.
DEVICE void storeTile(ARGS, const GemvPart& part, uint first, float added, uint thread)
{
#if OUT_Q8
    const uint t = 4 * thread;
    if (t >= TILE || first + t >= part.rows) return;
    float4 v;
    UNROLL for (uint j = 0; j < 4; j++)
        v[j] = gated(args, part, first + t + j, total(0, t + j), total(MATRICES - 1, t + j));
    storeQ8(part.y, part.rows, first + t, v);
#else
    static_assert(TILE <= THREADS);
    const uint row = first + thread;
    if (thread >= TILE || row >= part.rows) return;
#if PRODUCT == GLU
    ((float*)part.y)[row] = gated(args, part, row, total(0, thread), total(1, thread));
#else
    ((float*)part.y)[row] = total(0, thread) + added;
#endif
#endif
}

EARLY_KERNEL(gemv, Arguments)
{
    const uint thread = threadIdx.x, wave = thread / SUBGROUP, lane = thread % SUBGROUP;
    const GemvPart& part = partOf(args, blockIdx.x);
    const uint first = (blockIdx.x - part.first_block) * TILE;
    const uint split = wave % KSPLIT, slot = wave / KSPLIT * ROWS;
    loadFormatTables(part.w, thread, THREADS);

    Matrix w[MATRICES];
    w[0] = part.w;
    if (MATRICES > 1) w[MATRICES - 1] = shifted(part.w, part.up);
    const WarpRows rows = findRows(first + slot, part.rows);
    const uint unit = split * SUBGROUP + lane;
    Column columns[DEEP];
    UNROLL for (uint d = 0; d < DEEP; d++) columns[d].load(w, rows, unit + d * STRIDE);

#if NORM
    float4 norm[OWN_FOURS];
    loadNorm(args, norm, thread);
    waitForInputs();
    uint8_t* x = normalise(args, norm, thread);
#else
    waitForInputs();
    uint8_t* x = args.x;
#endif
    const float added = PRODUCT == GLU || thread >= TILE ? 0.0f : addend(part, first + thread);
    float sums[MATRICES * ROWS];
    UNROLL for (uint i = 0; i < MATRICES * ROWS; i++) sums[i] = 0;
    _Pragma("unroll 1") for (uint i = 0; i < LANE_UNITS; i += DEEP)
        UNROLL for (uint d = 0; d < DEEP; d++)
        {
            const uint u = unit + (i + d) * STRIDE;
            if (u < UNITS) columns[d].addTo(sums, loadActivations(x, u, COLS), u);
            if (i + d + DEEP < LANE_UNITS) columns[d].load(w, rows, u + DEEP * STRIDE);
        }

    ReducedSums<MATRICES * ROWS> reduced = reduceSums<MATRICES * ROWS>(sums, lane);
    UNROLL for (uint k = 0; k < reduced.COUNT; k++)
    {
        const uint sum = reduced.first + k;
        if (reduced.is_owner) partial[sum / ROWS][split][slot + sum % ROWS] = reduced.sums[k];
    }
    __syncthreads();
    storeTile(args, part, first, added, thread);
}
