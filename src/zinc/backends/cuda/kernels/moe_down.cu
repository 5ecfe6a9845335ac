// moe_down for few tokens (group.y). The runs of a token's slots form one long row, whose columns are
// multiplied by the weights of one expert after another.

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

DEVICE float residualAt(ARGS, uint token, uint row)
{
    if (args.residual == nullptr) return 0;
    return *(float*)(args.residual + uint64_t(token) * args.residual_stride + 4 * row);
}

KERNEL(moe_down, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint token = group.y, top_k = args.top_k;
    if (token >= rowsOf(args.step, args.dim)) return;
    loadFormatTables(args.w, thread, THREADS);
    static_assert(TILE <= THREADS);
    const uint own_row = group.x * TILE + thread; // row stored by the thread
    const bool stores = thread < TILE && own_row < args.rows;
    float total = stores ? residualAt(args, token, own_row) : 0.0f;
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
    {
        // Units past the end contribute zeros, so that all loads are issued together, without branches.
        PendingWeights pending[DEEP][ROWS];
        UNROLL for (uint d = 0; d < DEEP; d++)
        {
            const uint u = min(begin + d * stride, end - 1);
            UNROLL for (uint r = 0; r < ROWS; r++)
                pending[d][r] = prefetchWeights(
                    args.w, (experts[u / units] * args.rows + row[r]) * units + u % units);
        }
        issueWeights();
        UNROLL for (uint d = 0; d < DEEP; d++)
        {
            const uint u = min(begin + d * stride, end - 1), rank = u / units, col = u % units;
            const float factor = begin + d * stride < end ? factors[rank] : 0.0f;
            const Activations columns = loadActivations(h + rank * args.h_run, col, cols);
            UNROLL for (uint r = 0; r < ROWS; r++)
                sums[r] += factor * dotUnits(finishWeights(pending[d][r], col), columns);
        }
    }

    ReducedSums<ROWS> reduced = reduceSums<ROWS>(sums, lane);
    if (reduced.is_owner) partial[part][slot + reduced.first] = reduced.sums[0];
    __syncthreads();

    if (!stores) return;
    UNROLL for (uint k = 0; k < KSPLIT; k++) total += partial[k][thread];
    if (args.bias != nullptr)
        for (uint rank = 0; rank < top_k; rank++)
            total += weights[rank] * args.bias[experts[rank] * args.rows + own_row];
    *(float*)(args.y + uint64_t(token) * args.y_stride + 4 * own_row) = total;
}
