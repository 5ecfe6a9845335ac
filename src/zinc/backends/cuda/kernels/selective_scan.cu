// The selective scan of Mamba, token by token (zinc.ops.selective_scan). A thread has one column
// (group.x) of one sequence (group.y), whose state of SIZE numbers stays in registers. B and C of
// ROWS tokens at a time are staged in shared memory. The state is S [SIZE, cols].
//   ROLLBACK  if not 0, the state is a ring of 1 + ROLLBACK states by their position, so that a
//             sequence can be set back by that many rows

#include "arguments.h"

using Arguments = SelectiveScanArguments;

#include "step.cuh"
#include "decay.cuh"

#define RING (1 + ROLLBACK)
#define ROWS 16

SHARED float rows_b[ROWS][SIZE];
SHARED float rows_c[ROWS][SIZE];

KERNEL(selective_scan, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint sequence = group.y;
    if (sequence >= args.step->sequences) return;
    uint begin = args.step->seq_start[sequence], end = args.step->seq_start[sequence + 1];
    if (begin == end) return;
    uint col = group.x * THREADS + thread;
    bool inside = col < args.cols;
    uint source = min(col, args.cols - 1); // past the last column nothing is stored

    float* slot = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats;
    uint position = positionOf(args.step, begin);
    uint before = (position + RING - 1) % RING * SIZE * args.cols;
    float s[SIZE], decay[SIZE];
    UNROLL for (uint i = 0; i < SIZE; i++)
    {
        decay[i] = args.decay[source * SIZE + i];
        s[i] = position == 0 ? 0.0f : slot[before + i * args.cols + source];
    }
    float bias = args.dt_bias[source], skip = args.skip[source];

    for (uint first = begin; first < end; first += ROWS)
    {
        uint n = min(ROWS, end - first);
        __syncthreads();
        for (uint j = thread; j < n * SIZE; j += THREADS)
        {
            uint row = first + j / SIZE, i = j % SIZE;
            rows_b[j / SIZE][i] = ((float*)(args.b + uint64_t(row) * args.b_stride))[i];
            rows_c[j / SIZE][i] = ((float*)(args.c + uint64_t(row) * args.c_stride))[i];
        }
        __syncthreads();
        for (uint t = 0; t < n; t++)
        {
            uint row = first + t;
            float x = ((float*)(args.x + uint64_t(row) * args.x_stride))[source];
            float dt = ((float*)(args.dt + uint64_t(row) * args.dt_stride))[source];
            float pace = softplus(dt + bias), y = skip * x;
            UNROLL for (uint i = 0; i < SIZE; i++)
            {
                s[i] = exp(decay[i] * pace) * s[i] + pace * x * rows_b[t][i];
                y += s[i] * rows_c[t][i];
            }
            if (!inside) continue;
            ((float*)(args.y + uint64_t(row) * args.y_stride))[col] = y;
            if (row + RING < end) continue;
            uint at = (position + row - begin) % RING * SIZE * args.cols;
            UNROLL for (uint i = 0; i < SIZE; i++) slot[at + i * args.cols + col] = s[i];
        }
    }
}
