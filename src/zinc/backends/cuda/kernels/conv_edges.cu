// The first kernel of the convolution of many rows (conv_block.cuh): saves four columns per thread
// (grid.x) of the rows before a block (grid.y).

#define THREADS 128
#include "conv_block.cuh"

KERNEL(conv_edges, Arguments)
{
    uint col = 4 * (blockIdx.x * THREADS + threadIdx.x);
    RowBlock block = findBlock<BLOCK_ROWS>(args.step, blockIdx.y);
    if (block.rows == 0 || col >= args.cols) return;
    bool starts = block.start == block.first;
    uint position = positionOf(args.step, block.start);
    UNROLL for (uint t = 0; t < EDGE; t++)
    {
        bool fresh = ROLLBACK ? position + t < EDGE : position == 0;
        uint place = ROLLBACK ? (position + t - EDGE) % RING : t;
        uint8_t* from = starts ? stateRow(args, block.sequence, place)
                               : rowAt(args.x, block.start - EDGE + t, args.x_stride);
        float4 x = loadFour(from, args.cols, col);
        storeFour(edgeRow(args, block.slot, t), args.cols, col, starts && fresh ? float4(0.0f) : x);
    }
}
