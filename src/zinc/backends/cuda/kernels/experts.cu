// GEMV of slots with their selected experts: moe_glu, and the products of moe_down.
//   BY_EXPERT  1: a workgroup multiplies slots of one expert (group.y), BATCH at a time, and SPREAD
//              workgroups (group.z) share the expert; 0: a workgroup multiplies one slot, at position
//              group.y of `order`

#include "expert_rows.cuh"
#include "tile.cuh"

SHARED uint found;

KERNEL(experts, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
#if BY_EXPERT
    uint expert = group.y;
    uint begin = uint(args.starts[expert]) + group.z * BATCH, end = uint(args.starts[expert + 1]);
    if (begin >= end) return;
#else
    uint begin = group.y, end = begin + 1;
    if (begin >= rowsOf(args.step, args.dim) * args.top_k) return;
    uint8_t* row = rowAt(args, begin); // so that the loads of `order` and `starts` overlap
    for (uint e = thread; e < args.n_experts; e += THREADS)
    {
        const uint own = uint(args.starts[e]), next = uint(args.starts[e + 1]);
        if (own <= begin && begin < next) found = e;
    }
    __syncthreads();
    uint expert = found;
#endif
    loadFormatTables(args.w, thread, THREADS);

    uint units = (COLUMNS + UNIT - 1) / UNIT, first = group.x * TILE;
    for (uint at = begin; at < end; at += SPREAD * BATCH)
    {
        uint8_t* x[BATCH];
#if BY_EXPERT
        UNROLL for (uint i = 0; i < BATCH; i++) x[i] = rowAt(args, min(at + i, end - 1));
#else
        UNROLL for (uint i = 0; i < BATCH; i++) x[i] = row;
#endif
        accumulate(
            args.w, shifted(args.w, args.up), expert * args.rows * units, first, args.rows, COLUMNS,
            x, thread);
        storeTile(args, first, args.rows, expert, at, end, thread);
        __syncthreads();
    }
}
