// index_scores_mma: index_scores on tensor cores. A block takes every gridDim.x-th tile of KEYS
// positions of one token (grid.y). A warp has OWN_KEYS positions of a tile and keeps their keys in
// registers. It multiplies them with the queries of 16 heads at a time, while its keys of the next tile
// are copied.
//
// Each query is split into the sum of two float16 numbers, so scores are as exact as with float32
// queries.
//   HEADS  index heads, rounded up to a multiple of 16

#include "arguments.h"

using Arguments = IndexScoresArguments;

#include "step.cuh"
#include "floats.cuh"
#include "kv.cuh"
#include "mma.cuh"
#include "tile_rows.cuh"

#define WARPS (THREADS / SUBGROUP)
#define OWN_KEYS 32
#define KEYS (WARPS * OWN_KEYS)
#define CHUNKS (HEAD_DIM / 8)
#define STEPS (HEAD_DIM / 16)
#define EACH (OWN_KEYS * CHUNKS / SUBGROUP) // chunks of keys that a lane copies

typedef TileRows<CHUNKS> Rows;

constexpr float MOST = 65504.0f; // the largest float16 number

DYNAMIC_SHARED(staged, (2 * HEADS + KEYS) * Rows::PITCH * 16);
SHARED float weights[HEADS];

/// Starts copies of the warp's keys from position `from` on. Past the last position, its key is
/// repeated.
DEVICE void copyKeys(ARGS, const int* blocks, uint from, uint position, uint4* to, uint lane)
{
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        const uint row = (i * SUBGROUP + lane) / CHUNKS, chunk = (i * SUBGROUP + lane) % CHUNKS;
        const uint at = min(from + row, position), block_tokens = 1u << args.block_shift;
        const uint block = blocks[at >> args.block_shift];
        Plane plane = { args.keys + uint64_t(block) * args.key_block, block_tokens };
#if KV_Q8
        to[Rows::index(row, chunk)]
            = packHalves(plane.chunkAt(at & (block_tokens - 1), chunk, HEAD_DIM));
#else
        copyAsync(to + Rows::index(row, chunk),
            plane.chunksFrom(at & (block_tokens - 1), chunk, HEAD_DIM).numbers, true);
#endif
    }
    commitCopies();
}

/// Stores the queries of a token as two float16 numbers each: the first half of `to` has the
/// rounded queries, the second half their rounding errors.
DEVICE void stageQueries(ARGS, uint token, uint4* to, uint thread)
{
    uint8_t* q = rowAt(args.q, token, args.q_stride);
    const float* from = (float*)rowAt(args.weights, token, args.weights_stride);
    for (uint i = thread; i < HEADS; i += THREADS) weights[i] = i < args.n_heads ? from[i] : 0.0f;
    for (uint i = thread; i < HEADS * CHUNKS; i += THREADS)
    {
        const uint head = i / CHUNKS, chunk = i % CHUNKS;
        uint4 large = 0, small = 0;
        UNROLL for (uint h = 0; h < 2; h++)
        {
            float4 x = 0;
            if (head < args.n_heads)
                x = loadFour(q + 4 * head * HEAD_DIM, HEAD_DIM, 8 * chunk + 4 * h);
            const float4 finite = clamp(x, -MOST, MOST);
            UNROLL for (uint j = 0; j < 2; j++)
            {
                const uint pair = packHalves(finite[2 * j], finite[2 * j + 1]);
                large[2 * h + j] = pair;
                small[2 * h + j] = packHalves(x[2 * j] - f16tof32(pair & 0xffffu),
                    x[2 * j + 1] - f16tof32(pair >> 16));
            }
        }
        to[Rows::index(head, chunk)] = large;
        to[HEADS * Rows::PITCH + Rows::index(head, chunk)] = small;
    }
}

KERNEL(index_scores_mma, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP, warp = thread / SUBGROUP;
    const uint token = args.first + blockIdx.y;
    if (args.is_one_token == 0 && token >= args.step->tokens) return;
    const uint position = positionOf(args.step, token);
    if (blockIdx.x * KEYS > position || position < args.top_k) return;
    const uint sequence = args.is_one_token != 0 ? 0 : args.step->sequence[token];
    const int* blocks = args.step->tables[args.block_table]
        + sequence * args.step->table_stride[args.block_table];
    uint4* queries = (uint4*)staged;
    uint4* keyRows = queries + (2 * HEADS + warp * OWN_KEYS) * Rows::PITCH;
    float* scores = args.scores + uint64_t(blockIdx.y) * args.scores_stride;

    uint from = blockIdx.x * KEYS + warp * OWN_KEYS;
    copyKeys(args, blocks, from, position, keyRows, lane);
    stageQueries(args, token, queries, thread);
    __syncthreads();
    // The row whose address a lane passes to loadMatrices, and the half of its 16 dimensions.
    const uint key_row = lane % 8 + lane / 16 * 8, key_side = lane / 8 % 2;
    const uint head_row = lane % 16, head_side = lane / 16;
    for (; from <= position; from += gridDim.x * KEYS)
    {
        uint keys[STEPS][OWN_KEYS / 16][4];
        waitForCopies<0>();
        __syncwarp();
        UNROLL for (uint k = 0; k < STEPS; k++)
            UNROLL for (uint n = 0; n < OWN_KEYS / 16; n++)
                loadMatrices(keys[k][n], keyRows + Rows::index(16 * n + key_row, 2 * k + key_side));
        __syncwarp();
        copyKeys(args, blocks, from + gridDim.x * KEYS, position, keyRows, lane);

        float totals[OWN_KEYS / 8][2];
        UNROLL for (uint n = 0; n < OWN_KEYS / 8; n++) totals[n][0] = totals[n][1] = 0;
        _Pragma("unroll 1") for (uint first = 0; first < HEADS; first += 16)
        {
            float dots[OWN_KEYS / 8][4];
            UNROLL for (uint n = 0; n < OWN_KEYS / 8; n++)
                UNROLL for (uint i = 0; i < 4; i++) dots[n][i] = 0;
            UNROLL for (uint k = 0; k < STEPS; k++)
                UNROLL for (uint part = 0; part < 2; part++)
                {
                    uint a[4];
                    loadMatrices(a, queries + part * HEADS * Rows::PITCH
                        + Rows::index(first + head_row, 2 * k + head_side));
                    UNROLL for (uint n = 0; n < OWN_KEYS / 16; n++)
                    {
                        multiplyTiles(dots[2 * n], a, keys[k][n][0], keys[k][n][1]);
                        multiplyTiles(dots[2 * n + 1], a, keys[k][n][2], keys[k][n][3]);
                    }
                }
            const float low = weights[first + lane / 4], high = weights[first + lane / 4 + 8];
            UNROLL for (uint n = 0; n < OWN_KEYS / 8; n++)
                UNROLL for (uint i = 0; i < 2; i++)
                    totals[n][i] += low * max(dots[n][i], 0.0f) + high * max(dots[n][i + 2], 0.0f);
        }
        UNROLL for (uint n = 0; n < OWN_KEYS / 8; n++)
            UNROLL for (uint i = 0; i < 2; i++)
            {
                UNROLL for (uint m = 4; m < SUBGROUP; m *= 2)
                    totals[n][i] += shuffleXor(totals[n][i], m);
                const uint at = from + 8 * n + 2 * lane + i;
                if (lane < 4 && at <= position) scores[at] = totals[n][i];
            }
    }
}
