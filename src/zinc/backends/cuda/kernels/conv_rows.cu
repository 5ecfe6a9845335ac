// The second kernel of the convolution of many rows (conv_block.cuh): COLS columns (grid.x) of a block
// of rows (grid.y). A warp computes ROWS rows, and a lane four columns. All rows are loaded before the
// first row is stored.

#define WARPS 8
#define THREADS (WARPS * SUBGROUP)
#include "conv_block.cuh"
#include "activation.cuh"

#define COLS (4 * SUBGROUP)
#define ROWS (BLOCK_ROWS / WARPS)

/// Loads four columns of row `row` of a block. Negative rows are those before it.
DEVICE float4 loadRow(ARGS, RowBlock block, int row, uint col)
{
    uint8_t* from = row < 0 ? edgeRow(args, block.slot, uint(row + EDGE))
                            : rowAt(args.x, block.start + min(uint(row), block.rows - 1), args.x_stride);
    return loadFour(from, args.cols, col);
}

KERNEL(conv_rows, Arguments)
{
    const uint lane = threadIdx.x % SUBGROUP, warp = threadIdx.x / SUBGROUP;
    RowBlock block = findBlock<BLOCK_ROWS>(args.step, blockIdx.y);
    if (block.rows == 0) return;
    uint col = blockIdx.x * COLS + 4 * lane, first = warp * ROWS;
    uint source = min(col, (args.cols - 1) / 4 * 4); // threads past the last column store nothing
    float4 line[EDGE + ROWS], taps[TAPS], bias = 0.0f;
    UNROLL for (uint i = 0; i < EDGE + ROWS; i++)
        line[i] = loadRow(args, block, int(first + i) - EDGE, source);
    UNROLL for (uint t = 0; t < TAPS; t++)
        UNROLL for (uint j = 0; j < 4; j++)
            taps[t][j] = args.weight[min(source + j, args.cols - 1) * TAPS + t];
    if (BIAS)
        UNROLL for (uint j = 0; j < 4; j++) bias[j] = args.bias[min(source + j, args.cols - 1)];
#if ROLLBACK
    __syncthreads();
#else
    bool ends = block.start + block.rows == block.end && warp < EDGE && col < args.cols;
    float4 last;
    if (ends) last = loadRow(args, block, int(block.rows + warp) - EDGE, col); // row `warp` of the state
    __syncthreads();
    if (ends) storeFour(stateRow(args, block.sequence, warp), args.cols, col, last);
#endif
    if (col >= args.cols) return;
    UNROLL for (uint i = 0; i < ROWS; i++)
    {
        if (first + i >= block.rows) break;
        float4 sum = bias;
        UNROLL for (uint t = 0; t < TAPS; t++) sum += taps[t] * line[i + t];
        if (WITH_SILU)
            UNROLL for (uint j = 0; j < 4; j++) sum[j] *= sigmoid(sum[j]);
        uint row = block.start + first + i;
        storeFour(rowAt(args.y, row, args.y_stride), args.cols, col, sum);
#if ROLLBACK
        uint place = positionOf(args.step, row) % RING;
        if (row + RING >= block.end)
            storeFour(stateRow(args, block.sequence, place), args.cols, col, line[EDGE + i]);
#endif
    }
}
