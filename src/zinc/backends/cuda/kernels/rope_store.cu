// rope_store: normalises and rotates each head (group.x: those of q, then of k, then of v) of each
// token (group.y). Heads of q are stored in rows, those of k and v in the KV cache.

#include "arguments.h"

using Arguments = RopeStoreArguments;

#include "step.cuh"
#include "heads.cuh"

SHARED float4 shared_floats[HEAD_FLOAT4S];
DEVICE float4 loadShared(uint i) { return shared_floats[i]; }
DEVICE void storeShared(uint i, float4 x) { shared_floats[i] = x; }

#define THREADS SUBGROUP
KERNEL(rope_store, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint lane = threadIdx.x;
    uint token = group.y, n_q = args.n_heads, n_kv = args.n_kv_heads;
    bool alone = args.is_one_token != 0;
    if (!alone && token >= args.step->tokens) return;
    uint kind = group.x < n_q ? 0 : group.x < n_q + n_kv ? 1 : 2; // q, k, v
    uint head = group.x - (kind == 0 ? 0 : kind == 1 ? n_q : n_q + n_kv);
    uint width = kind == 2 ? HEAD_DIM_V : HEAD_DIM;

    uint8_t* x = kind == 0 ? rowAt(args.q, token, args.q_stride)
               : kind == 1 ? rowAt(args.k, token, args.k_stride)
                           : rowAt(args.v, token, args.v_stride);
    uint8_t* weight = kind == 0 ? args.q_norm : kind == 1 ? args.k_norm : (uint8_t*)nullptr;
    uint8_t* table = kind == 2 ? (uint8_t*)nullptr : rowAt(args.table, token, args.table_stride);
    bool normalised = kind == 2 && args.normalises_v != 0;
    Head own[1] = { Head({ x + 4 * head * width, width, weight, normalised, (float*)table }, lane) };
    prepareHeads(own, 0, 1, 1, args.eps, lane);

    if (kind == 0)
    {
        uint8_t* y = rowAt(args.out, token, args.out_stride) + 4 * head * width;
        for (uint i = lane; 4 * i < width; i += SUBGROUP)
            storeFour(y, width, 4 * i, headFour(0, i));
        return;
    }
    uint block_tokens = args.block_tokens, group_of = args.block_table;
    uint position = positionOf(args.step, token);
    uint sequence = 0;
    if (!alone) sequence = args.step->sequence[token];
    int* blocks = args.step->tables[group_of] + sequence * args.step->table_stride[group_of];
    uint64_t block = uint64_t(blocks[position / block_tokens]);
    uint8_t* start = kind == 1 ? args.keys + block * args.key_block
                               : args.values + block * args.value_block;
    uint plane = (kind == 1 ? args.key_block : args.value_block) / n_kv;
    Plane to = { start + head * plane, block_tokens };
    for (uint first = 0; 8 * first < width; first += SUBGROUP)
    {
        Chunk c = headChunk(0, first + lane);
        if (8 * (first + lane) < width)
            storeChunk(to, position % block_tokens, first + lane, width, c);
    }
}
