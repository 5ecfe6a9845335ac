// A causal convolution over many rows, in two kernels, because y may overwrite x. Rows of a step
// are divided into blocks of BLOCK_ROWS rows of one sequence. conv_edges saves the TAPS - 1 rows of x
// before each block; conv_rows processes the blocks in parallel. The state is that of causal_conv.cu.

#include "arguments.h"

using Arguments = ConvBlockArguments;

#include "floats.cuh"
#include "row_blocks.cuh"

#define BLOCK_ROWS 64
#define EDGE (TAPS - 1)
#define RING (EDGE + ROLLBACK)

/// Returns row t of the saved rows before a block.
DEVICE uint8_t* edgeRow(ARGS, uint slot, uint t)
{
    return (uint8_t*)(args.edges + uint64_t(slot * EDGE + t) * args.cols);
}

/// Returns row t of the state of a sequence.
DEVICE uint8_t* stateRow(ARGS, uint sequence, uint t)
{
    float* state = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats;
    return (uint8_t*)(state + t * args.cols);
}
