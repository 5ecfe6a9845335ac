// moe_down for few tokens (group.y). The runs of a token's slots form one long row, whose columns
// are multiplied with the weights of one expert after another.

#include "arguments.h"

using Arguments = MoeDownArguments;

#include "step.cuh"
#include "product.cuh"
#include "sums.cuh"

#define THREADS (WAVES * SUBGROUP)
#define TILE (ROWS * WAVES / KSPLIT)
#define MAX_TOP_K 64

SHARED float partial[KSPLIT][TILE];
SHARED uint experts[MAX_TOP_K];
SHARED float weights[MAX_TOP_K];
SHARED float factors[MAX_TOP_K];

KERNEL(moe_down, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint token = group.y, top_k = args.top_k;
    if (token >= rowsOf(args.step, args.dim)) return;
    loadFormatTables(args.w, thread, THREADS);
    float* route = (float*)((uint8_t*)args.routes + uint64_t(token) * args.routes_stride);
    for (uint rank = thread; rank < top_k; rank += THREADS)
    {
        uint expert = uint(route[rank]);
        float weight = route[top_k + rank];
        experts[rank] = expert;
        weights[rank] = weight;
        factors[rank] = args.scale != nullptr ? weight * args.scale[expert] : weight;
    }
    __syncthreads();

    uint wave = thread / SUBGROUP, lane = thread % SUBGROUP;
    uint part = wave % KSPLIT, slot = wave / KSPLIT * ROWS;
    uint cols = COLS > 0 ? COLS : args.cols, units = (cols + UNIT - 1) / UNIT;
    uint first = group.x * TILE;
    uint8_t* h = args.h + uint64_t(token) * args.h_stride;
    uint row[ROWS];
    UNROLL for (uint r = 0; r < ROWS; r++) row[r] = min(first + slot + r, args.rows - 1);
    float sums[ROWS];
    UNROLL for (uint r = 0; r < ROWS; r++) sums[r] = 0;

    const uint stride = KSPLIT * SUBGROUP;
    uint end = top_k * units;
    for (uint begin = part * SUBGROUP + lane; begin < end; begin += DEEP * stride)
        UNROLL for (uint deep = 0; deep < DEEP; deep++)
        {
            // Past the end nothing is added, so that all loads can be issued together.
            uint u = min(begin + deep * stride, end - 1);
            uint rank = u / units, col = u % units, plane = experts[rank] * args.rows;
            float factor = begin + deep * stride < end ? factors[rank] : 0.0f;
            Activations columns = loadActivations(h + rank * args.h_run, col, cols);
            UNROLL for (uint r = 0; r < ROWS; r++)
                sums[r] += factor
                    * dotUnits(loadWeights(args.w, (plane + row[r]) * units + col), columns);
        }

    ReducedSums<ROWS> reduced = reduceSums<ROWS>(sums, lane);
    if (reduced.is_owner) partial[part][slot + reduced.first] = reduced.sums[0];
    __syncthreads();

    for (uint t = thread; t < TILE; t += THREADS)
    {
        uint r = first + t;
        if (r >= args.rows) continue;
        float v = partial[0][t];
        UNROLL for (uint k = 1; k < KSPLIT; k++) v += partial[k][t];
        if (args.bias != nullptr)
            for (uint rank = 0; rank < top_k; rank++)
                v += weights[rank] * args.bias[experts[rank] * args.rows + r];
        if (args.residual != nullptr)
            v += *(float*)(args.residual + uint64_t(token) * args.residual_stride + 4 * r);
        *(float*)(args.y + uint64_t(token) * args.y_stride + 4 * r) = v;
    }
}
