// GEMM over quantised weights on tensor cores. A block computes a tile of ROWS weight rows by BATCH
// rows of x. Each warp takes 16 ROW_TILES weight rows (of each matrix of a gated product) by all
// rows of x; KSPLIT warps split the columns of the same rows, slab by slab.
//   EXPERTS   rows of x are the slots of an expert with few slots (gemm_experts.cu handles many);
//             STAGES is 0
//   STAGES    0: each warp converts rows of 8-bit blocks itself, which suits few rows of x.
//             Otherwise half_rows has converted them, and slabs of columns are copied to shared
//             memory, STAGES deep.
//   DEEP      slabs of weights that a warp has in flight
//   GROUPS    1: warp groups multiply (wgmma), and another warp group copies the slabs. ROW_TILES,
//             KSPLIT and SPLITS must be 1
//   SPLITS    blocks (group.z) that split the columns of a tile; the last to finish adds up their
//             sums. 1 with EXPERTS

#if EXPERTS
#include "expert_rows.cuh"
using TileArguments = ExpertTileArguments;
#else
#include "linear_rows.cuh"
using TileArguments = LinearTileArguments;
#endif

#include "half_rows.cuh"
#if GROUPS
#include "wgmma.cuh"
#endif

#include "gemm_tile.cuh"
#include "weight_slabs.cuh"

#if GROUPS
#include "group_rows.cuh"
#elif STAGES
#include "staged_rows.cuh"
#else
#include "direct_rows.cuh"
#endif

#include "gemm_store.cuh"

DEVICE void computeTile(const TileArguments& args, TileOrigin origin, uint first, uint thread)
{
#if GROUPS
    makeStages(thread);
    if (thread >= WORKERS) return copySlabs(args, origin, thread);
    claimRegisters<WORKER_REGISTERS>();
#endif
    Sums sums;
    sums.clear();
    accumulate(args, origin, sums, thread);
    storeTile(args, sums, origin, first, thread);
}

#if EXPERTS

SHARED uint chosen, chosenBefore[THREADS / SUBGROUP];

/// Returns the expert with number `index` among the experts with slots, or the number of experts
/// if fewer experts have slots.
DEVICE uint findExpert(ARGS, uint index, uint thread)
{
    if (thread == 0) chosen = args.n_experts;
    uint before = 0; // number of experts with slots in earlier iterations
    for (uint first = 0; first < args.n_experts; first += THREADS)
    {
        const uint e = first + thread;
        const bool has_slots = e < args.n_experts && args.starts[e] < args.starts[e + 1];
        const uint warps = __ballot_sync(0xffffffffu, has_slots);
        __syncthreads();
        if (thread % SUBGROUP == 0) chosenBefore[thread / SUBGROUP] = __popc(warps);
        __syncthreads();
        uint number = before + __popc(warps & ((1u << thread % SUBGROUP) - 1));
        for (uint w = 0; w < THREADS / SUBGROUP; w++)
        {
            if (w < thread / SUBGROUP) number += chosenBefore[w];
            before += chosenBefore[w];
        }
        if (has_slots && number == index) chosen = e;
    }
    __syncthreads();
    return chosen;
}

#endif

EARLY_KERNEL(gemm_mma, TileArguments)
{
    const uint thread = threadIdx.x, first = blockIdx.x * ROWS;
    const Arguments& product = args.product;
#if EXPERTS
    waitForInputs();
    TileOrigin origin = warpOrigin(first, thread);
    origin.slab = 0;
    origin.last_slab = slabCount(product);
    origin.plane = findExpert(product, blockIdx.z, thread);
    if (origin.plane >= product.n_experts) return;
    origin.end = uint(product.starts[origin.plane + 1]);
    const uint begin = uint(product.starts[origin.plane]) + blockIdx.y * BATCH;
    if (begin >= origin.end) return;
    loadFormatTables(product.w, thread, THREADS);
    for (uint at = begin; at < origin.end; at += SPREAD * BATCH)
    {
        origin.at = at;
        computeTile(args, origin, first, thread);
        __syncthreads();
    }
#else
    const TileOrigin origin = linearOrigin(product, thread);
    if (origin.at >= origin.end)
    {
        waitForInputs();
        return;
    }
    loadFormatTables(product.w, thread, THREADS);
    computeTile(args, origin, first, thread);
#endif
}
