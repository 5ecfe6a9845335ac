// The first kernel of the chunkwise delta rule (delta_chunk.cuh): matrices of a chunk (grid.x) for a
// key head (grid.y) and its value heads, which are divided among the blocks of grid.z.

#define THREADS 128
#include "delta_chunk.cuh"
#include "activation.cuh"
#include "decay.cuh"
#include "delta_squares.cuh"
#include "floats.cuh"

#define WARPS (THREADS / SUBGROUP)
#define FOURS ((K_DIM + 4 * SUBGROUP - 1) / (4 * SUBGROUP)) // float4s of a row per lane
#define AHEAD 4 // rows that a warp loads at once
#define L2_EPS 1e-6f
#define MATRIX_FLOATS (CHUNK * CHUNK)

DYNAMIC_SHARED(staged, 16 * (KEY_PART > WARPS * MATRIX_FLOATS / 4 ? KEY_PART : WARPS * MATRIX_FLOATS / 4));
SHARED float products[2][CHUNK][CHUNK + 1]; // K K^T (not of scans), Q K^T

/// Normalises rows of K and Q and stores their parts in shared memory.
DEVICE void loadKeys(ARGS, RowBlock chunk, uint k_head, uint warp, uint lane)
{
    for (uint i = warp * AHEAD; i < 2 * CHUNK; i += WARPS * AHEAD) // rows of K, then of Q
    {
        float4 x[AHEAD][FOURS];
        bool is_query = i >= CHUNK;
        UNROLL for (uint r = 0; r < AHEAD; r++)
        {
            uint row = (i + r) % CHUNK;
            uint8_t* from = rowAt(args.qkv, chunk.start + min(row, chunk.rows - 1), args.qkv_stride)
                + 4 * (firstColumn(args, is_query ? 0 : 1) + k_head * K_DIM);
            UNROLL for (uint f = 0; f < FOURS; f++)
            {
                uint col = 4 * (f * SUBGROUP + lane);
                x[r][f] = 0.0f;
                if (col < K_DIM && row < chunk.rows) x[r][f] = loadFour(from, K_DIM, col);
            }
        }
        UNROLL for (uint r = 0; r < AHEAD; r++)
        {
            float sum = 0;
            UNROLL for (uint f = 0; f < FOURS; f++) sum += dot(x[r][f], x[r][f]);
            float scale = 1;
            if (!SSM) scale = rsqrt(warpSum(sum) + L2_EPS) * (is_query ? rsqrt(float(K_DIM)) : 1.0f);
            uint4* tile = (uint4*)staged + (is_query ? 2 * KEY_TILE : 0);
            UNROLL for (uint f = 0; f < FOURS; f++)
            {
                uint four = f * SUBGROUP + lane;
                if (4 * four >= K_DIM) break;
                float4 y = x[r][f] * scale;
                SplitPair left(y.x, y.y), right(y.z, y.w);
                uint at = KeyRows::index((i + r) % CHUNK, four / 2);
                ((uint2*)(tile + at))[four % 2] = uint2(left.high, right.high);
                ((uint2*)(tile + KEY_TILE + at))[four % 2] = uint2(left.low, right.low);
            }
        }
    }
}

/// Multiplies 16 rows of K or Q with all rows of K.
DEVICE void multiplyKeys(uint warp, uint lane)
{
    uint kind = warp / 2, first = warp % 2 * 16;
    if (SSM && kind == 0) return;
    const uint4* keys = (uint4*)staged;
    const uint4* rows = keys + kind * 2 * KEY_TILE;
    float sums[CHUNK / 8][4];
    clear(sums);
    UNROLL for (uint k = 0; k < K_DIM / 16; k++)
    {
        // Matrices of the left operand: rows 0 to 7 and 8 to 15 of the left columns, then of the
        // right ones.
        uint at = KeyRows::index(first + lane % 16, 2 * k + lane / 16);
        SplitTile a;
        loadMatrices(a.high, rows + at);
        loadMatrices(a.low, rows + KEY_TILE + at);
        UNROLL for (uint n = 0; n < CHUNK / 16; n++)
        {
            uint high[4], low[4];
            loadSplit<KeyRows>(keys, KEY_TILE, 16 * n, 2 * k, high, low);
            multiplySplit(sums[2 * n], sums[2 * n + 1], a, high, low);
        }
    }
    UNROLL for (uint n = 0; n < CHUNK / 8; n++)
        UNROLL for (uint i = 0; i < 4; i++)
            products[kind][first + lane / 4 + i / 2 * 8][8 * n + 2 * (lane % 4) + i % 2] = sums[n][i];
}

/// Computes T, P and the gates of a value head. A lane holds column `lane` of each matrix, and the
/// gates of token `lane`. `matrix` is scratch memory of the warp.
DEVICE void makeSquares(ARGS, RowBlock chunk, uint head, float* matrix, uint lane)
{
    uint token = chunk.start + min(lane, chunk.rows - 1);
    float alpha = ((float*)rowAt(args.alpha, token, args.alpha_stride))[head];
    float pace = softplus(alpha + args.decay_bias[head]), decay = exp(args.decay[head] * pace);
    float beta = SSM ? pace : sigmoid(((float*)rowAt(args.beta, token, args.beta_stride))[head]);
    if (lane >= chunk.rows)
    {
        decay = 1;
        beta = 0;
    }
    uint4* part = valuePart(args, chunk.slot, head);

    // `ratio` is G_t / G_lane, a product of decays: a difference of logarithms would be inexact.
    float ratio = 0, whole = 1, own = 1;
    UNROLL for (uint t = 0; t < CHUNK; t++)
    {
        float step = __shfl_sync(0xffffffffu, decay, int(t));
        float b = __shfl_sync(0xffffffffu, beta, int(t));
        whole *= step;
        own = lane == t ? whole : own;
        ratio = lane == t ? 1.0f : ratio * step;
        if (!SSM) matrix[t * CHUNK + lane] = lane < t ? b * ratio * products[0][t][lane] : 0.0f;
        float p = ratio * products[1][t][lane];
        storeSquare(part + P_AT, t, lane, SSM ? beta * p : p);
    }
    float* gates = (float*)(part + GATES_AT);
    gates[lane] = own;
    gates[CHUNK + lane] = SSM ? beta * ratio : ratio;
    if (SSM) return;
    __syncwarp();
    storeInverse<CHUNK>(part, matrix, beta, lane);
    __syncwarp();
}

KERNEL(delta_chunks, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP, warp = thread / SUBGROUP;
    uint k_head = blockIdx.y, each = args.n_v_heads / args.n_k_heads;
    const RowBlock chunk = findChunk(args.step, blockIdx.x);
    if (chunk.rows == 0) return;
    loadKeys(args, chunk, k_head, warp, lane);
    __syncthreads();
    multiplyKeys(warp, lane);
    uint4* part = keyPart(args, chunk.slot, k_head);
    if (blockIdx.z == 0)
        for (uint i = thread; i < KEY_PART; i += THREADS) part[i] = ((uint4*)staged)[i];
    __syncthreads();
    for (uint n = blockIdx.z * WARPS + warp; n < each; n += gridDim.z * WARPS)
        makeSquares(args, chunk, GROUPED ? k_head * each + n : n * args.n_k_heads + k_head,
            (float*)staged + warp * MATRIX_FLOATS, lane);
}
