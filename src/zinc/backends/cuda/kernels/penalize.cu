// penalize: rewrites the logits of penalised tokens of a row (group.x), as zinc.ops.penalties does. A
// thread rewrites the logit of one token. The row's input token may be known to the device only. If it
// counts and has no pair of its own, it counts as a token that occurs once.

#include "arguments.h"

using Arguments = PenalizeArguments;

#include "step.cuh"

constexpr uint NO_TOKEN = ~0u;

SHARED uint has_pair; // whether the input token has one

/// Returns the logit of a token that occurs `count` times. No operations are fused, so each one rounds.
DEVICE float penalized(float logit, uint count, const PenaltyParams& params)
{
    const float scaled = logit <= 0 ? __fmul_rn(logit, params.repeat) : logit / params.repeat;
    return scaled - __fadd_rn(__fmul_rn(float(count), params.frequency), params.presence);
}

KERNEL(penalize, Arguments)
{
    const uint row = blockIdx.x, thread = threadIdx.x;
    StepHeader* step = args.step;
    if (row >= step->outputs) return;
    const PenaltyParams params = step->penalties[row];
    const uint2* pairs = (const uint2*)(step->penalties + step->outputs) + params.first;
    float* logits = (float*)(args.logits + uint64_t(row) * args.stride);
    const uint input = params.counts_input != 0 ? idOf(step, uint(step->output_rows[row])) : NO_TOKEN;
    if (thread == 0) has_pair = 0;
    __syncthreads();
    for (uint i = thread; i < params.n_counts; i += THREADS)
    {
        const uint token = pairs[i].x, count = pairs[i].y + (token == input ? 1 : 0);
        if (token == input) has_pair = 1;
        if (count > 0) logits[token] = penalized(logits[token], count, params);
    }
    __syncthreads();
    if (thread == 0 && input != NO_TOKEN && has_pair == 0)
        logits[input] = penalized(logits[input], 1, params);
}
