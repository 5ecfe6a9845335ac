// The inner loop of GEMV kernels. A workgroup takes TILE weight rows, ROWS of them for each wave,
// and KSPLIT waves split the activations of a row. Each unit of weights is read once for BATCH rows
// of x, and a lane has DEEP units in flight. Include it after the file that defines the rows.

#include "product.cuh"
#include "sums.cuh"

#define THREADS (WAVES * SUBGROUP)
#define TILE (ROWS * WAVES / KSPLIT)
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define SUMS (ROWS * BATCH * MATRICES) // sums of a lane

SHARED float partial[MATRICES][KSPLIT][TILE * BATCH];

/// Adds the products of unit `u` of the lane's rows. Activations of all rows of x stay in registers
/// while weights are read. If they do not fit (32 floats per row), weights stay in registers while
/// activations are read.
void addUnit(
    Matrix w, Matrix up, uint at[ROWS], uint u, uint cols, uint8_t* x[BATCH],
    float (&sums)[SUMS])
{
#if ROWS_Q8 || UNIT < 32 || BATCH <= ROWS || PRODUCT == GLU
    UNROLL for (uint m = 0; m < MATRICES; m++)
    {
        PendingWeights pending[ROWS];
        UNROLL for (uint r = 0; r < ROWS; r++)
            pending[r] = prefetchWeights(m == 0 ? w : up, at[r] + u);
        if (BATCH == 1) issueWeights();
        Activations activations[BATCH];
        UNROLL for (uint i = 0; i < BATCH; i++) activations[i] = loadActivations(x[i], u, cols);
        UNROLL for (uint r = 0; r < ROWS; r++)
        {
            Weights unit_w = finishWeights(pending[r], u);
            UNROLL for (uint i = 0; i < BATCH; i++)
                sums[(m * ROWS + r) * BATCH + i] += dotUnits(unit_w, activations[i]);
        }
    }
#else
    Weights weights[ROWS];
    UNROLL for (uint r = 0; r < ROWS; r++) weights[r] = loadWeights(w, at[r] + u);
    UNROLL for (uint i = 0; i < BATCH; i++)
    {
        Activations activations = loadActivations(x[i], u, cols);
        UNROLL for (uint r = 0; r < ROWS; r++)
            sums[r * BATCH + i] += dotUnits(weights[r], activations);
    }
#endif
}

/// Multiplies TILE rows of w, starting at row `first`, by BATCH rows of x, and stores the sums of each
/// split in `partial`. The `rows` rows of w start at `unit`; past the end, the last row is repeated.
DEVICE void accumulate(
    Matrix w, Matrix up, uint unit, uint first, uint rows, uint cols, uint8_t* x[BATCH],
    uint thread)
{
    uint wave = thread / SUBGROUP, lane = thread % SUBGROUP;
    uint part = wave % KSPLIT, slot = wave / KSPLIT * ROWS;
    uint units = (cols + UNIT - 1) / UNIT;
    uint at[ROWS];
    UNROLL for (uint r = 0; r < ROWS; r++)
        at[r] = unit + min(first + slot + r, rows - 1) * units;

    float sums[SUMS];
    UNROLL for (uint i = 0; i < SUMS; i++) sums[i] = 0;

    const uint stride = KSPLIT * SUBGROUP;
    uint u = part * SUBGROUP + lane;
    for (; u + (DEEP - 1) * stride < units; u += DEEP * stride)
        UNROLL for (uint d = 0; d < DEEP; d++)
            addUnit(w, up, at, u + d * stride, cols, x, sums);
#if DEEP > 1
    for (; u < units; u += stride) addUnit(w, up, at, u, cols, x, sums);
#endif

    ReducedSums<SUMS> reduced = reduceSums<SUMS>(sums, lane);
    UNROLL for (uint k = 0; k < reduced.COUNT; k++)
    {
        uint sum = reduced.first + k, r = sum / BATCH % ROWS;
        uint t = sum % BATCH * TILE + slot + r;
        if (reduced.is_owner) partial[sum / (BATCH * ROWS)][part][t] = reduced.sums[k];
    }
    __syncthreads();
}

/// The sum over all splits for matrix m, row t % TILE of the tile and row t / TILE of x.
DEVICE float total(uint m, uint t)
{
    float sum = partial[m][0][t];
    UNROLL for (uint k = 1; k < KSPLIT; k++) sum += partial[m][k][t];
    return sum;
}

/// Stores the results of the tile: weight rows starting at `first`, rows of x from `at` to `end`.
DEVICE void storeTile(ARGS, uint first, uint rows, uint plane, uint at, uint end, uint thread)
{
    const uint up = PRODUCT == GLU;
#if OUT_Q8
    for (uint t = 4 * thread; t < TILE * BATCH; t += 4 * THREADS)
    {
        uint i = at + t / TILE, r = first + t % TILE;
        if (i >= end || r >= rows) continue;
        float4 sums, ups;
        UNROLL for (uint j = 0; j < 4; j++)
        {
            sums[j] = total(0, t + j);
            ups[j] = total(up, t + j);
        }
        storeResultsQ8(args, i, plane, r, sums, ups);
    }
#else
    for (uint t = thread; t < TILE * BATCH; t += THREADS)
    {
        uint i = at + t / TILE, r = first + t % TILE;
        if (i < end && r < rows) storeResult(args, i, plane, r, total(0, t), total(up, t));
    }
#endif
}
