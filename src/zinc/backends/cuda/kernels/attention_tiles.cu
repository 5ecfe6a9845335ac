// Attention of many queries (prefill) with vector arithmetic. A workgroup iterates over the keys BK at
// a time. Queries, keys and values are in shared memory as float16.

#include "arguments.h"

using Arguments = AttentionTileArguments;

#include "query_tile.cuh"

#define CHUNKS (HEAD_DIM / 8)
#define CHUNKS_V (HEAD_DIM_V / 8)
#define WIDE (HEAD_DIM > HEAD_DIM_V ? HEAD_DIM : HEAD_DIM_V)
#define PITCH (WIDE / 8 + 1) // chunks from row to row, odd so that rows lie in different banks
#define LANES 4 // threads that share a row in the softmax
#define ROW_STEP (THREADS / CHUNKS_V) // rows that the workgroup sums at once
#define ROWS_EACH ((BQ + ROW_STEP - 1) / ROW_STEP)

SHARED uint4 qTile[BQ * PITCH];
SHARED uint4 tile[BK * PITCH]; // keys, later values
SHARED float scores[BQ][BK + 1];
SHARED float correction[BQ], totals[BQ];
SHARED float4 rowsOut[ROW_STEP * HEAD_DIM_V / 4];

DEVICE void unpackHalves(uint4 h, float (&v)[8])
{
    UNROLL for (uint i = 0; i < 4; i++)
    {
        v[2 * i] = f16tof32(h[i] & 0xffffu);
        v[2 * i + 1] = f16tof32(h[i] >> 16);
    }
}

KERNEL(attention_tiles, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    QueryTile t = findTile(args, group.x, group.y);
    if (t.rows == 0) return;
    for (uint i = thread; i < BQ * CHUNKS; i += THREADS)
        qTile[i / CHUNKS * PITCH + i % CHUNKS] = t.query(args, i / CHUNKS, i % CHUNKS);

    OnlineSoftmax running = emptySoftmax(); // softmax of row thread / LANES
    uint col_chunk = thread % CHUNKS_V, first_row = thread / CHUNKS_V;
    float acc[ROWS_EACH][8];
    UNROLL for (uint r = 0; r < ROWS_EACH; r++)
        UNROLL for (uint i = 0; i < 8; i++) acc[r][i] = 0;

    for (uint from = t.first / BK * BK; from <= t.last; from += BK)
    {
        uint block = t.blockAt(args, from), token = t.inBlock(args, from);
        Plane keys = t.keysOf(args, block), values = t.valuesOf(args, block);
        __syncthreads();
        for (uint i = thread; i < BK * CHUNKS; i += THREADS)
            tile[i / CHUNKS * PITCH + i % CHUNKS]
                = packHalves(keys.chunkAt(token + i / CHUNKS, i % CHUNKS, HEAD_DIM));
        __syncthreads();

        // A thread scores two rows against four keys.
        for (uint p = thread; p < BQ / 2 * (BK / 4); p += THREADS)
        {
            uint k = p % (BK / 4), r = p / (BK / 4);
            float dots[2][4];
            UNROLL for (uint i = 0; i < 8; i++) dots[i / 4][i % 4] = 0;
            for (uint c = 0; c < CHUNKS; c++)
            {
                float a[8], b[8];
                unpackHalves(qTile[r * PITCH + c], a);
                unpackHalves(qTile[(r + BQ / 2) * PITCH + c], b);
                UNROLL for (uint j = 0; j < 4; j++)
                {
                    float x[8];
                    unpackHalves(tile[(k + j * (BK / 4)) * PITCH + c], x);
                    UNROLL for (uint i = 0; i < 8; i++)
                    {
                        dots[0][j] += a[i] * x[i];
                        dots[1][j] += b[i] * x[i];
                    }
                }
            }
            UNROLL for (uint i = 0; i < 8; i++)
                scores[r + i / 4 * (BQ / 2)][k + i % 4 * (BK / 4)] = dots[i / 4][i % 4];
        }
        __syncthreads();

        if (thread < BQ * LANES)
        {
            uint r = thread / LANES;
            uint position = t.positionOf(r);
            float maximum = running.maximum;
            UNROLL for (uint i = 0; i < BK / LANES; i++)
            {
                uint k = i * LANES + thread % LANES, key = from + k;
                float score = t.isVisible(args, position, key)
                    ? t.scored(args, scores[r][k] * args.scale, r, key) : MASKED;
                scores[r][k] = score;
                maximum = max(maximum, score);
            }
            maximum = neighbourMax<LANES>(maximum);
            float scale = exp2(running.maximum - maximum), sum = 0;
            UNROLL for (uint i = 0; i < BK / LANES; i++)
            {
                uint k = i * LANES + thread % LANES;
                float p = scores[r][k] > MASKED ? exp2(scores[r][k] - maximum) : 0.0f;
                scores[r][k] = p;
                sum += p;
            }
            sum = neighbourSum<LANES>(sum);
            running.sum = running.sum * scale + sum;
            running.maximum = maximum;
            if (thread % LANES == 0) correction[r] = scale;
        }
        for (uint i = thread; i < BK * CHUNKS_V; i += THREADS)
            tile[i / CHUNKS_V * PITCH + i % CHUNKS_V]
                = packHalves(values.chunkAt(token + i / CHUNKS_V, SKIP_V + i % CHUNKS_V, V_WIDTH));
        __syncthreads();

        if (first_row < ROW_STEP)
        {
            UNROLL for (uint r = 0; r < ROWS_EACH; r++)
                UNROLL for (uint i = 0; i < 8; i++)
                    acc[r][i] *= correction[min(first_row + r * ROW_STEP, BQ - 1)];
            for (uint k = 0; k < BK; k++)
            {
                float x[8];
                unpackHalves(tile[k * PITCH + col_chunk], x);
                UNROLL for (uint r = 0; r < ROWS_EACH; r++)
                {
                    float p = scores[min(first_row + r * ROW_STEP, BQ - 1)][k];
                    UNROLL for (uint i = 0; i < 8; i++) acc[r][i] += p * x[i];
                }
            }
        }
    }

    if (thread < BQ * LANES && thread % LANES == 0)
    {
        uint r = thread / LANES;
        totals[r] = t.finalScale(args, r, running);
    }
    UNROLL for (uint r = 0; r < ROWS_EACH; r++)
    {
        __syncthreads();
        if (first_row < ROW_STEP)
        {
            uint at = (first_row * CHUNKS_V + col_chunk) * 2;
            rowsOut[at] = float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
            rowsOut[at + 1] = float4(acc[r][4], acc[r][5], acc[r][6], acc[r][7]);
        }
        __syncthreads();
        for (uint i = thread; i < ROW_STEP * HEAD_DIM_V / 4; i += THREADS)
        {
            uint own = r * ROW_STEP + i / (HEAD_DIM_V / 4), col = i % (HEAD_DIM_V / 4) * 4;
            if (own < BQ) t.store(args, own, col, rowsOut[i] * totals[own]);
        }
    }
}
