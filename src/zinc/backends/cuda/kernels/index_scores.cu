// index_scores: the scores by which a token selects positions, weights times relu(query . key) summed
// over the index heads. A block takes KEYS positions (group.x) of one token (group.y). It multiplies
// HEADS heads at a time, and stages SLICE of their dimensions in shared memory. Groups of LANES threads
// process different heads, and the threads of a group different keys.
//   HEADS  a power of two

#include "arguments.h"

using Arguments = IndexScoresArguments;

#include "step.cuh"
#include "floats.cuh"
#include "kv.cuh"

#define SLICE 32 // dimensions
#define FOURS (SLICE / 4)
#define GROUPS 8
#define LANES (THREADS / GROUPS)
#define HEADS_EACH (HEADS / GROUPS)
#define KEYS_EACH (KEYS / LANES)
#define CHUNKS_EACH (KEYS * SLICE / 8 / THREADS) // chunks staged by a thread
#define PITCH (FOURS + 1) // odd, so that the keys of neighbouring threads lie in different banks

SHARED float4 queries[HEADS * FOURS], keyRows[KEYS * PITCH];
SHARED float sums[GROUPS][KEYS];

KERNEL(index_scores, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % LANES, group = thread / LANES;
    const uint token = args.first + blockIdx.y, from = blockIdx.x * KEYS;
    if (args.is_one_token == 0 && token >= args.step->tokens) return;
    const uint position = positionOf(args.step, token);
    if (from > position || position < args.top_k) return;
    const uint sequence = args.is_one_token != 0 ? 0 : args.step->sequence[token];
    const int* blocks = args.step->tables[args.block_table]
        + sequence * args.step->table_stride[args.block_table];
    uint8_t* q = rowAt(args.q, token, args.q_stride);
    const float* weights = (float*)rowAt(args.weights, token, args.weights_stride);

    // Past the last position, its key is repeated.
    Plane planes[CHUNKS_EACH];
    uint tokens[CHUNKS_EACH];
    UNROLL for (uint n = 0; n < CHUNKS_EACH; n++)
    {
        const uint at = min(from + (n * THREADS + thread) / (SLICE / 8), position);
        const uint block = blocks[at >> args.block_shift];
        planes[n] = { args.keys + uint64_t(block) * args.key_block, 1u << args.block_shift };
        tokens[n] = at & ((1u << args.block_shift) - 1);
    }

    float totals[KEYS_EACH];
    UNROLL for (uint j = 0; j < KEYS_EACH; j++) totals[j] = 0;
    for (uint first = 0; first < args.n_heads; first += HEADS)
    {
        float dots[HEADS_EACH][KEYS_EACH];
        UNROLL for (uint h = 0; h < HEADS_EACH; h++)
            UNROLL for (uint j = 0; j < KEYS_EACH; j++) dots[h][j] = 0;
        for (uint slice = 0; slice < HEAD_DIM; slice += SLICE)
        {
            __syncthreads(); // the last slice has been multiplied
            UNROLL for (uint n = 0; n < CHUNKS_EACH; n++)
            {
                const uint i = n * THREADS + thread, row = i / (SLICE / 8), chunk = i % (SLICE / 8);
                float v[8] = {};
                if (slice + 8 * chunk < HEAD_DIM)
                    unpackChunk(planes[n].chunkAt(tokens[n], slice / 8 + chunk, HEAD_DIM), v);
                keyRows[row * PITCH + 2 * chunk] = float4(v[0], v[1], v[2], v[3]);
                keyRows[row * PITCH + 2 * chunk + 1] = float4(v[4], v[5], v[6], v[7]);
            }
            for (uint i = thread; i < HEADS * FOURS; i += THREADS)
            {
                const uint head = first + i / FOURS, col = slice + 4 * (i % FOURS);
                float4 x = 0;
                if (head < args.n_heads && col < HEAD_DIM)
                    x = loadFour(q + 4 * head * HEAD_DIM, HEAD_DIM, col);
                queries[i] = x;
            }
            __syncthreads();
            UNROLL for (uint d = 0; d < FOURS; d++)
            {
                float4 k[KEYS_EACH];
                UNROLL for (uint j = 0; j < KEYS_EACH; j++)
                    k[j] = keyRows[(j * LANES + lane) * PITCH + d];
                UNROLL for (uint h = 0; h < HEADS_EACH; h++)
                {
                    const float4 x = queries[(group * HEADS_EACH + h) * FOURS + d];
                    UNROLL for (uint j = 0; j < KEYS_EACH; j++)
                        UNROLL for (uint i = 0; i < 4; i++) dots[h][j] += x[i] * k[j][i];
                }
            }
        }
        UNROLL for (uint h = 0; h < HEADS_EACH; h++)
        {
            const uint head = first + group * HEADS_EACH + h;
            const float weight = head < args.n_heads ? weights[head] : 0.0f;
            UNROLL for (uint j = 0; j < KEYS_EACH; j++)
                totals[j] += weight * max(dots[h][j], 0.0f);
        }
    }

    UNROLL for (uint j = 0; j < KEYS_EACH; j++) sums[group][j * LANES + lane] = totals[j];
    __syncthreads();
    for (uint i = thread; i < KEYS && from + i <= position; i += THREADS)
    {
        float score = sums[0][i];
        UNROLL for (uint g = 1; g < GROUPS; g++) score += sums[g][i];
        args.scores[uint64_t(blockIdx.y) * args.scores_stride + from + i] = score;
    }
}
