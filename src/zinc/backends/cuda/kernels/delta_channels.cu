// The first kernel of the chunkwise delta rule (delta_chunk.cuh) if each channel of the keys has a
// decay: matrices of a chunk (grid.x) for a value head (grid.y).
//
// The products of rows t and j of a chunk have the factor G_t / G_j in each channel. As G_j may be 0 in
// float32, it must be a product of the decays between the rows:
//
//     both rows in one half of the chunk   sums of float32 products, decayed from row to row
//     one row in each half                 (G_t / G_15 K) (G_15 / G_j K)^T, on tensor cores
//
// No factor is larger than 1, so nothing overflows, however fast channels decay.

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
#define HALF (CHUNK / 2)
#define HALF_TILE KeyRows::size(HALF)
#define SHARE 4 // lanes that share the sums of a column
#define PITCH (CHUNK + 4) // floats from row to row of `products`

// First float32 rows of K, Q and the decays, then matrices.
DYNAMIC_SHARED(staged, 16 * KEY_PART > 12 * CHUNK * K_DIM ? 16 * KEY_PART : 12 * CHUNK * K_DIM);
SHARED float4 products[2][CHUNK][PITCH / 4]; // K K^T G_t / G_j, Q K^T G_t / G_j

DEVICE float* productsAt(uint kind, uint row) { return (float*)products[kind][row]; }

/// Returns rows of K (kind 0), Q (1) or the decays (2).
DEVICE float4* stagedRow(uint kind, uint row) { return (float4*)staged + (kind * CHUNK + row) * (K_DIM / 4); }

/// Loads rows of K, Q and alpha, and stores normalised keys and queries, and decays.
DEVICE void loadRows(ARGS, RowBlock chunk, uint head, uint warp, uint lane)
{
    uint k_head = keyHeadOf(args, head);
    float decay = args.decay[head];
    const float* biases = args.decay_bias + head * K_DIM;
    for (uint i = warp * AHEAD; i < 3 * CHUNK; i += WARPS * AHEAD)
    {
        float4 x[AHEAD][FOURS];
        uint kind = i / CHUNK;
        UNROLL for (uint r = 0; r < AHEAD; r++)
        {
            uint row = chunk.start + min((i + r) % CHUNK, chunk.rows - 1);
            uint8_t* from = kind == 2
                ? rowAt(args.alpha, row, args.alpha_stride) + 4 * head * K_DIM
                : rowAt(args.qkv, row, args.qkv_stride) + 4 * (firstColumn(args, 1 - kind) + k_head * K_DIM);
            UNROLL for (uint f = 0; f < FOURS; f++)
            {
                uint col = 4 * (f * SUBGROUP + lane);
                x[r][f] = 0.0f;
                if (col < K_DIM) x[r][f] = loadFour(from, K_DIM, col);
            }
        }
        UNROLL for (uint r = 0; r < AHEAD; r++)
        {
            uint row = (i + r) % CHUNK;
            bool exists = row < chunk.rows;
            float scale = 0;
            if (kind < 2)
            {
                float sum = 0;
                UNROLL for (uint f = 0; f < FOURS; f++) sum += dot(x[r][f], x[r][f]);
                scale = rsqrt(warpSum(sum) + L2_EPS) * (kind == 1 ? rsqrt(float(K_DIM)) : 1.0f);
            }
            UNROLL for (uint f = 0; f < FOURS; f++)
            {
                uint four = f * SUBGROUP + lane;
                if (4 * four >= K_DIM) break;
                float4 y = exists ? x[r][f] * scale : float4(0.0f);
                if (kind == 2)
                    UNROLL for (uint c = 0; c < 4; c++)
                    {
                        float alpha = x[r][f][c] + biases[4 * four + c];
                        y[c] = exists ? boundedDecayOf(decay, alpha, args.floor) : 1.0f;
                    }
                stagedRow(kind, row)[four] = y;
            }
        }
    }
}

/// Stores products of rows in the same half of the chunk. SHARE lanes compute one column of both
/// matrices: the products with the key of row `column`, decayed up to row t.
DEVICE void multiplyHalves(uint warp, uint lane)
{
    uint column = warp * (SUBGROUP / SHARE) + lane / SHARE, share = lane % SHARE;
    uint half = warp / 2 * HALF, first = warp % 2 * (HALF / 2); // no column of the warp begins before `first`
    float by_key[HALF], by_query[HALF];
    UNROLL for (uint t = 0; t < HALF; t++) by_key[t] = by_query[t] = 0;
    for (uint four = share; four < K_DIM / 4; four += SHARE)
    {
        float4 key = stagedRow(0, column)[four], decayed = 0.0f;
        UNROLL for (uint t = 0; t < HALF; t++)
        {
            if (t < first) continue;
            uint row = half + t;
            decayed *= stagedRow(2, row)[four];
            if (row == column) decayed = key;
            by_key[t] += dot(decayed, stagedRow(0, row)[four]);
            by_query[t] += dot(decayed, stagedRow(1, row)[four]);
        }
    }
    UNROLL for (uint t = 0; t < HALF; t++)
    {
        by_key[t] = neighbourSum<SHARE>(by_key[t]);
        by_query[t] = neighbourSum<SHARE>(by_query[t]);
        if (t % SHARE != share) continue;
        productsAt(0, half + t)[column] = by_key[t];
        productsAt(1, half + t)[column] = by_query[t];
    }
}

/// Stores products of the rows of the second half of K (kind 0) or Q (1) with those of the first half of
/// K, from the matrices of `Channel::storeHalves`.
DEVICE void multiplyAcross(uint kind, uint lane)
{
    const uint4 *rows = (uint4*)staged + 2 * kind * HALF_TILE, *keys = (uint4*)staged + 4 * HALF_TILE;
    float sums[2][4];
    clear(sums);
    UNROLL for (uint k = 0; k < K_DIM / 16; k++)
    {
        uint at = KeyRows::index(lane % 16, 2 * k + lane / 16);
        SplitTile a;
        loadMatrices(a.high, rows + at);
        loadMatrices(a.low, rows + HALF_TILE + at);
        uint high[4], low[4];
        loadSplit<KeyRows>(keys, HALF_TILE, 0, 2 * k, high, low);
        multiplySplit(sums[0], sums[1], a, high, low);
    }
    UNROLL for (uint n = 0; n < 2; n++)
        UNROLL for (uint i = 0; i < 4; i++)
            productsAt(kind, HALF + lane / 4 + i / 2 * 8)[8 * n + 2 * (lane % 4) + i % 2] = sums[n][i];
}

/// One channel of the rows of a chunk.
struct Channel
{
    float keys[CHUNK], queries[CHUNK], decays[CHUNK];
    uint channel;

    MEMBER void load()
    {
        UNROLL for (uint t = 0; t < CHUNK; t++)
        {
            keys[t] = ((float*)stagedRow(0, t))[channel];
            queries[t] = ((float*)stagedRow(1, t))[channel];
            decays[t] = ((float*)stagedRow(2, t))[channel];
        }
    }

    /// Stores a number of row `row` in the two parts of a matrix, which are `size` chunks apart.
    MEMBER void store(uint4* matrix, uint size, uint row, float x)
    {
        SplitPair pair(x, 0.0f);
        uint16_t* to = (uint16_t*)(matrix + KeyRows::index(row, channel / 8)) + channel % 8;
        to[0] = uint16_t(pair.high);
        to[8 * size] = uint16_t(pair.low);
    }

    /// Stores the second half of K and of Q with the decay since the first one, and the first half of
    /// K with the decay up to its end.
    MEMBER void storeHalves()
    {
        uint4* to = (uint4*)staged;
        float decay = 1;
        UNROLL for (uint t = 0; t < HALF; t++)
        {
            decay *= decays[HALF + t];
            store(to, HALF_TILE, t, keys[HALF + t] * decay);
            store(to + 2 * HALF_TILE, HALF_TILE, t, queries[HALF + t] * decay);
        }
        decay = 1;
        UNROLL for (uint i = 0; i < HALF; i++)
        {
            uint t = HALF - 1 - i;
            store(to + 4 * HALF_TILE, HALF_TILE, t, keys[t] * decay);
            decay *= decays[t];
        }
    }

    /// Stores the matrices of a key part, and returns G_last.
    MEMBER float storeWhole()
    {
        uint4* to = (uint4*)staged;
        float decay = 1;
        UNROLL for (uint i = 0; i < CHUNK; i++)
        {
            uint t = CHUNK - 1 - i;
            store(to + 4 * KEY_TILE, KEY_TILE, t, keys[t] * decay);
            decay *= decays[t];
        }
        decay = 1;
        UNROLL for (uint t = 0; t < CHUNK; t++)
        {
            decay *= decays[t];
            store(to, KEY_TILE, t, keys[t] * decay);
            store(to + 2 * KEY_TILE, KEY_TILE, t, queries[t] * decay);
        }
        return decay;
    }
};

/// Computes T and P from `products`. A lane holds column `lane` of each matrix, and the gates of token
/// `lane`.
DEVICE void makeSquares(ARGS, RowBlock chunk, uint head, uint4* part, uint lane)
{
    uint token = chunk.start + min(lane, chunk.rows - 1);
    float beta = sigmoid(((float*)rowAt(args.beta, token, args.beta_stride))[head]);
    if (lane >= chunk.rows) beta = 0;
    UNROLL for (uint t = 0; t < CHUNK; t++)
    {
        float b = __shfl_sync(0xffffffffu, beta, int(t));
        if (lane < t) productsAt(0, t)[lane] *= b;
        storeSquare(part + P_AT, t, lane, lane <= t ? productsAt(1, t)[lane] : 0.0f);
    }
    __syncwarp();
    storeInverse<PITCH>(part, productsAt(0, 0), beta, lane);
}

KERNEL(delta_channels, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP, warp = thread / SUBGROUP;
    uint head = blockIdx.y;
    const RowBlock chunk = findChunk(args.step, blockIdx.x);
    if (chunk.rows == 0) return;
    loadRows(args, chunk, head, warp, lane);
    __syncthreads();
    multiplyHalves(warp, lane);
    Channel channel;
    channel.channel = thread;
    bool exists = thread < K_DIM;
    if (exists) channel.load();
    __syncthreads();
    if (exists) channel.storeHalves();
    __syncthreads();
    if (warp < 2) multiplyAcross(warp, lane);
    __syncthreads();
    uint4 *keys = keyPart(args, chunk.slot, head), *values = valuePart(args, chunk.slot, head);
    if (exists) ((float*)(values + GATES_AT))[thread] = channel.storeWhole();
    __syncthreads();
    if (warp == 0) makeSquares(args, chunk, head, values, lane);
    else
        for (uint i = thread - SUBGROUP; i < KEY_PART; i += THREADS - SUBGROUP) keys[i] = ((uint4*)staged)[i];
}
