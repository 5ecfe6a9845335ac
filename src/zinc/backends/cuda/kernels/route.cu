// route: expert ids and weights of a token (group.x) from its router logits, by one warp.
//   SORTS  the step has one token, whose slots are sorted by expert as group_experts does

#include "arguments.h"

#if SORTS
using Arguments = RouteExpertsArguments;
#else
using Arguments = RouteArguments;
#endif

#include "routing.cuh"
#include "step.cuh"

#define THREADS SUBGROUP

KERNEL(route, Arguments)
{
    const uint token = blockIdx.x, lane = threadIdx.x;
    if (token >= rowsOf(args.step, args.dim)) return;
    const float* logits = (float*)(args.logits + uint64_t(token) * args.logits_stride);
    float* y = (float*)(args.y + uint64_t(token) * args.y_stride);
    chooseExperts(logits, args.bias, args.scale, y, lane);
#if SORTS
    sortSlots(args.order, args.starts, lane);
#endif
}
