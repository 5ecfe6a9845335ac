// Attention of few queries (decode) with vector arithmetic. LANES lanes share a key: each lane holds
// eight dimensions of every chunk, and prefetches AT_ONCE keys and values. A thread scores EACH heads.
// Groups of lanes process different keys; their softmax states and sums are merged at the end.

#define THREADS (WAVES * SUBGROUP)
#define CHUNKS ((HEAD_DIM / 8 + LANES - 1) / LANES)
#define CHUNKS_V ((HEAD_DIM_V / 8 + LANES - 1) / LANES)
#define FOURS (EACH * HEAD_DIM_V / 4)
#define SUMS (WAVES * FOURS)
#include "few_queries.cuh"

#if PREPARES
SHARED float4 shared_floats[SUMS > HEADS_FLOAT4S ? SUMS : HEADS_FLOAT4S]; // heads, later sums
DEVICE float4 loadShared(uint i) { return shared_floats[i]; }
DEVICE void storeShared(uint i, float4 x) { shared_floats[i] = x; }
#else
SHARED float4 shared_floats[SUMS];
#endif
SHARED float2 totals[WAVES][EACH]; // maximum and sum of the softmax
#if PREPARES
#include "merge_splits.cuh"
#endif

#define PLACES (SELECTED ? AT_ONCE : 1)

/// Locations of the next keys of a split, starting at key `at`. These keys share a block, except that
/// each selected key may be in a block of its own.
struct Places
{
    uint position[PLACES], block[PLACES];
};

DEVICE Places placesAt(ARGS, KeySplit split, uint at)
{
    Places places;
    UNROLL for (uint u = 0; u < PLACES; u++)
    {
#if SELECTED
        places.position[u] = uint(split.selected[min(at + u, split.end - 1)]);
#else
        places.position[u] = at;
#endif
        places.block[u] = split.blockAt(args, places.position[u]);
    }
    return places;
}

/// Loads chunks of the keys at `places`. Past the last key, a block holds zeros or stale numbers,
/// never NaN.
DEVICE void loadKeys(ARGS, KeySplit split, const Places& places, uint j, Chunk (&k)[AT_ONCE][CHUNKS])
{
    Chunks chunks[PLACES];
    UNROLL for (uint u = 0; u < PLACES; u++)
        chunks[u] = split.keysOf(args, places.block[u]).chunksFrom(
            split.inBlock(args, places.position[u]), min(j, HEAD_DIM / 8 - 1), HEAD_DIM);
    UNROLL for (uint u = 0; u < AT_ONCE; u++)
        UNROLL for (uint c = 0; c < CHUNKS; c++)
        {
            uint more = c * LANES;
            if (more + LANES > HEAD_DIM / 8 && more + j >= HEAD_DIM / 8) more = 0;
            k[u][c] = SELECTED ? chunks[u % PLACES].at(0, more, HEAD_DIM) : chunks[0].at(u, more, HEAD_DIM);
        }
}

/// Loads chunks of the values of the same positions.
DEVICE void loadValues(ARGS, KeySplit split, const Places& places, uint j, Chunk (&v)[AT_ONCE][CHUNKS_V])
{
    Chunks chunks[PLACES];
    UNROLL for (uint u = 0; u < PLACES; u++)
        chunks[u] = split.valuesOf(args, places.block[u]).chunksFrom(
            split.inBlock(args, places.position[u]), SKIP_V + min(j, HEAD_DIM_V / 8 - 1), V_WIDTH);
    UNROLL for (uint u = 0; u < AT_ONCE; u++)
        UNROLL for (uint c = 0; c < CHUNKS_V; c++)
        {
            uint more = c * LANES;
            if (more + LANES > HEAD_DIM_V / 8 && more + j >= HEAD_DIM_V / 8) more = 0;
            v[u][c] = SELECTED ? chunks[u % PLACES].at(0, more, V_WIDTH) : chunks[0].at(u, more, V_WIDTH);
        }
}

EARLY_KERNEL(attention, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
#if !PREPARES
    waitForInputs(); // rope_store writes keys
#endif
    KeySplit split = findSplit(args, group);
#if PREPARES
    if (!split.exists) return waitForInputs();
#else
    if (!split.exists) return;
#endif
    uint lane = thread % SUBGROUP, wave = thread / SUBGROUP;
    uint j = thread % LANES, key_group = thread / LANES;
    split.findKeys(args, AT_ONCE);
    uint stride = THREADS / LANES * AT_ONCE, at = split.begin + key_group * AT_ONCE;
    const uint last = (split.end - 1) / AT_ONCE * AT_ONCE;
    Places next;
    Chunk k[AT_ONCE][CHUNKS], k_next[AT_ONCE][CHUNKS];
    Chunk v[AT_ONCE][CHUNKS_V], v_next[AT_ONCE][CHUNKS_V];
    if (at < split.end)
    {
        const Places places = placesAt(args, split, at);
        next = placesAt(args, split, min(at + stride, last));
        loadKeys(args, split, places, j, k);
        loadValues(args, split, places, j, v);
    }
#if PREPARES
    OwnHeads own(split);
    own.loadWeights(args, split, wave, lane);
    waitForInputs(); // earlier steps have written all keys but the token's own
    own.loadRows(args, split, wave, lane);
    own.prepare(args, split, wave, lane);
    const bool is_last = own.has_keys;
#endif
    float q[EACH][CHUNKS][8];
    UNROLL for (uint r = 0; r < EACH; r++)
    {
        UNROLL for (uint c = 0; c < CHUNKS; c++)
        {
            uint col = 8 * (c * LANES + j);
            float4 a = 0, b = 0;
            if (col < HEAD_DIM)
            {
                a = args.scale * split.queryFour(args, r, col);
                b = args.scale * split.queryFour(args, r, col + 4);
            }
            UNROLL for (uint i = 0; i < 4; i++)
            {
                q[r][c][i] = a[i];
                q[r][c][i + 4] = b[i];
            }
        }
    }
#if PREPARES
    __syncthreads(); // sums reuse the memory of the queries
#endif

    OnlineSoftmax running[EACH];
    float acc[EACH][CHUNKS_V][8];
    UNROLL for (uint r = 0; r < EACH; r++)
    {
        running[r] = emptySoftmax();
        UNROLL for (uint c = 0; c < CHUNKS_V; c++)
            UNROLL for (uint i = 0; i < 8; i++) acc[r][c][i] = 0;
    }

    for (; at < split.end; at += stride)
    {
        // Prefetch the next keys and values while the current ones are used.
        loadKeys(args, split, next, j, k_next);
        loadValues(args, split, next, j, v_next);
#if PREPARES
        UNROLL for (uint u = 0; u < AT_ONCE; u++)
        {
            if (!is_last || at + u != split.position) continue;
            UNROLL for (uint c = 0; c < CHUNKS; c++)
                k[u][c] = own_chunks[min(c * LANES + j, HEAD_DIM / 8 - 1)];
            UNROLL for (uint c = 0; c < CHUNKS_V; c++)
                v[u][c] = own_chunks[OWN_VALUE + min(c * LANES + j, HEAD_DIM_V / 8 - 1)];
        }
#endif
        next = placesAt(args, split, min(at + 2 * stride, last));
        float score[EACH][AT_ONCE];
        UNROLL for (uint u = 0; u < AT_ONCE; u++)
        {
            UNROLL for (uint r = 0; r < EACH; r++) score[r][u] = 0;
            UNROLL for (uint c = 0; c < CHUNKS; c++)
            {
                float x[8];
                unpackChunk(k[u][c], x);
                UNROLL for (uint r = 0; r < EACH; r++)
                    UNROLL for (uint i = 0; i < 8; i++) score[r][u] += q[r][c][i] * x[i];
            }
            UNROLL for (uint r = 0; r < EACH; r++) score[r][u] = neighbourSum<LANES>(score[r][u]);
        }
        UNROLL for (uint r = 0; r < EACH; r++)
        {
            float maximum = running[r].maximum;
            UNROLL for (uint u = 0; u < AT_ONCE; u++)
            {
                bool visible = at + u >= split.first && at + u < split.end;
                score[r][u] = visible ? split.scored(args, score[r][u], r, at + u) : MASKED;
                maximum = max(maximum, score[r][u]);
            }
            float correction = exp2(running[r].maximum - maximum);
            running[r].maximum = maximum;
            running[r].sum *= correction;
            UNROLL for (uint c = 0; c < CHUNKS_V; c++)
                UNROLL for (uint i = 0; i < 8; i++) acc[r][c][i] *= correction;
            UNROLL for (uint u = 0; u < AT_ONCE; u++)
            {
                score[r][u] = score[r][u] > MASKED ? exp2(score[r][u] - maximum) : 0.0f;
                running[r].sum += score[r][u];
            }
        }
        UNROLL for (uint u = 0; u < AT_ONCE; u++)
            UNROLL for (uint c = 0; c < CHUNKS_V; c++)
            {
                float x[8];
                unpackChunk(v[u][c], x);
                UNROLL for (uint r = 0; r < EACH; r++)
                    UNROLL for (uint i = 0; i < 8; i++) acc[r][c][i] += score[r][u] * x[i];
            }
        UNROLL for (uint u = 0; u < AT_ONCE; u++)
        {
            UNROLL for (uint c = 0; c < CHUNKS; c++) k[u][c] = k_next[u][c];
            UNROLL for (uint c = 0; c < CHUNKS_V; c++) v[u][c] = v_next[u][c];
        }
    }

    // Merge the lanes of a wave that processed different keys, then the waves.
    UNROLL for (uint r = 0; r < EACH; r++)
    {
        UNROLL for (uint m = LANES; m < SUBGROUP; m *= 2)
        {
            OnlineSoftmax other
                = { shuffleXor(running[r].maximum, m), shuffleXor(running[r].sum, m) };
            float2 correction = mergeInto(running[r], other);
            UNROLL for (uint c = 0; c < CHUNKS_V; c++)
                UNROLL for (uint i = 0; i < 8; i++)
                    acc[r][c][i] = acc[r][c][i] * correction.x
                        + shuffleXor(acc[r][c][i], m) * correction.y;
        }
        if (lane < LANES)
        {
            UNROLL for (uint c = 0; c < CHUNKS_V; c++)
            {
                uint col = 8 * (c * LANES + j);
                if (col >= HEAD_DIM_V) break;
                uint four = (r * HEAD_DIM_V + col) / 4;
                const float(&a)[8] = acc[r][c];
                shared_floats[wave * FOURS + four] = float4(a[0], a[1], a[2], a[3]);
                shared_floats[wave * FOURS + four + 1] = float4(a[4], a[5], a[6], a[7]);
            }
            if (lane == 0) totals[wave][r] = float2(running[r].maximum, running[r].sum);
        }
    }
    __syncthreads();

    for (uint i = thread; i < FOURS; i += THREADS)
    {
        uint r = 4 * i / HEAD_DIM_V;
        OnlineSoftmax all = { totals[0][r].x, totals[0][r].y };
        float4 y = shared_floats[i];
        UNROLL for (uint w = 1; w < WAVES; w++)
        {
            OnlineSoftmax other = { totals[w][r].x, totals[w][r].y };
            float2 correction = mergeInto(all, other);
            y = y * correction.x + shared_floats[w * FOURS + i] * correction.y;
        }
        split.store(args, r, 4 * i % HEAD_DIM_V, y, all);
    }
#if PREPARES
    mergeSplits(args, split, thread);
#endif
}
