// norm_route: the RMS norm of a token, its products with the router and with the gate of the shared
// experts, and the selection of its experts. Each block normalises the row itself. Each warp multiplies
// one weight row, and loads the columns of that row before it waits for the token. The first block also
// stores the normalised row as 8-bit blocks. The last block to finish selects the experts.

#include "arguments.h"

using Arguments = NormRouteArguments;

#include "arrivals.cuh"
#include "floats.cuh"
#include "q8.cuh"
#include "routing.cuh"

#define WARPS WAVES // warps per block
#define THREADS (WARPS * SUBGROUP)
#include "norm_row.cuh" // needs THREADS

#define LANE_FOURS ((ROW_FOURS + SUBGROUP - 1) / SUBGROUP) // float4s of a weight row per lane
#define IN_FLIGHT (LANE_FOURS < 16 ? LANE_FOURS : 16)

SHARED float4 normalisedRow[ROW_FOURS];

/// Normalises x into shared memory, given the thread's weights of the norm.
DEVICE void normalise(ARGS, float4 (&columns)[OWN_FOURS], uint thread)
{
    normaliseOwn(args, columns, thread);
    UNROLL for (uint i = 0; i < OWN_FOURS; i++)
    {
        const uint four = i * THREADS + thread;
        if (four >= ROW_FOURS) break;
        normalisedRow[four] = columns[i];
        if (blockIdx.x == 0) storeQ8(args.blocks, COLS, 4 * four, columns[i]);
    }
    __syncthreads();
}

/// Loads IN_FLIGHT float4s of a weight row, the first of them number `from` of the lane.
DEVICE void loadWeights(const float4* row, uint from, uint lane, float4 (&w)[IN_FLIGHT])
{
    UNROLL for (uint i = 0; i < IN_FLIGHT; i++)
        w[i] = loadAligned<16>(row + min((from + i) * SUBGROUP + lane, ROW_FOURS - 1));
}

EARLY_KERNEL(norm_route, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP;
    const uint row = blockIdx.x * WARPS + thread / SUBGROUP, n_rows = EXPERTS + args.n_gates;
    const uint own_row = min(row, n_rows - 1); // warps past the last row repeat it
    const bool is_gate = own_row >= EXPERTS;
    const uint part_row = is_gate ? own_row - EXPERTS : own_row;
    const float4* weights
        = (const float4*)(is_gate ? args.gates : args.router) + uint64_t(part_row) * ROW_FOURS;
    float4 w[IN_FLIGHT], norm[OWN_FOURS];
    loadWeights(weights, 0, lane, w);
    loadNorm(args, norm, thread);
    waitForInputs();
    normalise(args, norm, thread);

    float sum = 0;
    _Pragma("unroll 1") for (uint from = 0; from < LANE_FOURS; from += IN_FLIGHT)
    {
        if (from > 0) loadWeights(weights, from, lane, w);
        UNROLL for (uint i = 0; i < IN_FLIGHT; i++)
        {
            const uint four = (from + i) * SUBGROUP + lane;
            if (four < ROW_FOURS) sum += dot(w[i], normalisedRow[four]);
        }
    }
    sum = warpSum(sum);
    if (lane == 0 && row < n_rows)
    {
        const float* bias = is_gate ? args.gate_bias : args.router_bias;
        if (bias != nullptr) sum += bias[part_row];
        (is_gate ? args.gate : args.logits)[part_row] = sum;
    }
    if (!arrivesLast(args.arrived, gridDim.x, thread) || thread >= SUBGROUP) return;
    chooseExperts(args.logits, args.choice_bias, args.scale, args.routes, lane);
    sortSlots(args.order, args.starts, lane);
}
