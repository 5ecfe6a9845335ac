// The second kernel of the chunkwise delta rule (delta_chunk.cuh): a sequence (grid.z) of a value
// head (grid.x), chunk by chunk. Each warp keeps 16 columns of the state S in registers: 16 rows of
// S^T in the layout of tensor core sums, which it converts to operands. All products are
// transposed, so a warp needs no results of other warps. With two STAGES, the matrices of the next
// chunk are copied to shared memory while one chunk is multiplied.

#define THREADS (WARPS * SUBGROUP)
#include "delta_chunk.cuh"
#include "floats.cuh"

#define STAGE (KEY_PART + VALUE_PART)

DYNAMIC_SHARED(staged, STAGES * STAGE * 16);

/// The chunks of a sequence. Successive chunks use the stages in rotation.
struct Chunks
{
    uint slot, head, k_head;

    MEMBER uint4* stage(uint i) { return (uint4*)staged + i % STAGES * STAGE; }

    /// Starts copies of the matrices of chunk i.
    MEMBER void load(ARGS, uint i)
    {
        uint4* to = stage(i);
        const uint4* keys = keyPart(args, slot + i, k_head);
        const uint4* values = valuePart(args, slot + i, head);
        for (uint j = threadIdx.x; j < KEY_PART; j += THREADS) copyAsync(to + j, keys + j, true);
        for (uint j = threadIdx.x; j < VALUE_PART; j += THREADS)
            copyAsync(to + KEY_PART + j, values + j, true);
        commitCopies();
    }
};

/// 16 columns of the state, and the results for a chunk. A lane holds columns `col` and `col` + 8, and
/// two neighbouring rows of every eight.
struct StateColumns
{
    float state[K_DIM / 8][4];
    float known[CHUNK / 8][4], out[CHUNK / 8][4], values[CHUNK / 8][4]; // scans have no `known`
    uint col, pair; // pair: first of the two neighbouring rows

    /// Loads V of a chunk. Rows past the last one repeat it.
    MEMBER void loadValues(ARGS, uint head, uint start, uint rows)
    {
        UNROLL for (uint n = 0; n < CHUNK / 8; n++)
            UNROLL for (uint i = 0; i < 4; i++)
            {
                uint row = start + min(8 * n + pair + i % 2, rows - 1);
                float* x = (float*)rowAt(args.qkv, row, args.qkv_stride);
                values[n][i] = x[firstColumn(args, 2) + head * V_DIM + col + i / 2 * 8];
            }
    }

    /// known = S^T K^T, out = S^T Q^T.
    MEMBER void multiplyState(const uint4* keys)
    {
        clear(known);
        clear(out);
        UNROLL for (uint k = 0; k < K_DIM / 16; k++)
        {
            SplitTile a;
            a.take(state[2 * k], state[2 * k + 1]);
            UNROLL for (uint n = 0; n < CHUNK / 16; n++)
            {
                uint high[4], low[4];
                if (!SSM)
                {
                    loadSplit<KeyRows>(keys, KEY_TILE, 16 * n, 2 * k, high, low);
                    multiplySplit(known[2 * n], known[2 * n + 1], a, high, low);
                }
                loadSplit<KeyRows>(keys + 2 * KEY_TILE, KEY_TILE, 16 * n, 2 * k, high, low);
                multiplySplit(out[2 * n], out[2 * n + 1], a, high, low);
            }
        }
    }

    /// sums += left M^T, for a square matrix M.
    MEMBER void multiplySquare(const float (&left)[CHUNK / 8][4], const uint4* matrix, float (&sums)[CHUNK / 8][4])
    {
        UNROLL for (uint k = 0; k < CHUNK / 16; k++)
        {
            SplitTile a;
            a.take(left[2 * k], left[2 * k + 1]);
            UNROLL for (uint n = 0; n < CHUNK / 16; n++)
            {
                uint high[4], low[4];
                loadSplit<SquareRows>(matrix, SQUARE_TILE, 16 * n, 2 * k, high, low);
                multiplySplit(sums[2 * n], sums[2 * n + 1], a, high, low);
            }
        }
    }

    /// Adds D^T K to the state.
    MEMBER void update(const float (&d)[CHUNK / 8][4], const uint4* keys)
    {
        uint lane = threadIdx.x % SUBGROUP;
        UNROLL for (uint k = 0; k < CHUNK / 16; k++)
        {
            SplitTile a;
            a.take(d[2 * k], d[2 * k + 1]);
            UNROLL for (uint n = 0; n < K_DIM / 16; n++)
            {
                uint high[4], low[4], at = KeyRows::index(16 * k + lane % 16, 2 * n + lane / 16);
                loadMatricesTransposed(high, keys + at);
                loadMatricesTransposed(low, keys + KEY_TILE + at);
                multiplySplit(state[2 * n], state[2 * n + 1], a, high, low);
            }
        }
    }

    /// Processes a chunk: leaves O^T in `out` and the next state in `state`.
    MEMBER void process(const uint4* keys, float skip)
    {
        const uint4* squares = keys + KEY_PART;
        const float* gates = (const float*)(squares + GATES_AT);
        multiplyState(keys);
        UNROLL for (uint n = 0; n < CHUNK / 8; n++)
            UNROLL for (uint i = 0; i < 4; i++)
            {
                float gate = CHANNELS ? 1.0f : gates[8 * n + pair + i % 2];
                known[n][i] = values[n][i] - gate * known[n][i];
                out[n][i] *= gate;
            }
        float d[CHUNK / 8][4];
        clear(d);
        if (SSM)
            UNROLL for (uint n = 0; n < CHUNK / 8; n++)
                UNROLL for (uint i = 0; i < 4; i++) d[n][i] = values[n][i];
        else multiplySquare(known, squares, d);
        multiplySquare(d, squares + P_AT, out);
        if (SSM)
            UNROLL for (uint n = 0; n < CHUNK / 8; n++)
                UNROLL for (uint i = 0; i < 4; i++) out[n][i] += skip * values[n][i];
        if (!CHANNELS)
            UNROLL for (uint n = 0; n < CHUNK / 8; n++)
                UNROLL for (uint i = 0; i < 4; i++) d[n][i] *= gates[CHUNK + 8 * n + pair + i % 2];
        UNROLL for (uint n = 0; n < K_DIM / 8; n++)
            UNROLL for (uint i = 0; i < 4; i++)
                state[n][i] *= gates[CHANNELS ? 8 * n + pair + i % 2 : CHUNK - 1];
        update(d, keys + (CHANNELS ? 4 * KEY_TILE : 0));
    }

    MEMBER void store(ARGS, uint head, uint start, uint rows)
    {
        UNROLL for (uint n = 0; n < CHUNK / 8; n++)
            UNROLL for (uint i = 0; i < 4; i++)
            {
                uint row = 8 * n + pair + i % 2;
                if (row >= rows) continue;
                float* y = (float*)rowAt(args.y, start + row, args.y_stride);
                y[head * V_DIM + col + i / 2 * 8] = out[n][i];
            }
    }
};

/// Returns where S before a position lies in a slot. With ROLLBACK, the position begins a chunk.
DEVICE uint halfFloats(ARGS, uint position)
{
    return ROLLBACK ? position / 16 % 2 * (args.slot_floats / 2) : 0;
}

KERNEL(delta_scan, Arguments)
{
    const uint lane = threadIdx.x % SUBGROUP, warp = threadIdx.x / SUBGROUP;
    uint head = blockIdx.x, sequence = blockIdx.z;
    if (sequence >= args.step->sequences) return;
    PartRows part = rowsOfPart(args.step, sequence, ROLLBACK ? SCAN : WHOLE);
    uint start = part.begin, end = part.end;
    if (start == end) return;
    Chunks chunks = { firstSlot<CHUNK>(args.step, sequence), head, CHANNELS ? head : keyHeadOf(args, head) };
    chunks.load(args, 0);

    uint first = (blockIdx.y * WARPS + warp) * 16;
    bool exists = first < V_DIM; // a warp without columns only copies
    StateColumns columns;
    columns.col = min(first, V_DIM - 16) + lane / 4;
    columns.pair = 2 * (lane % 4);
    float skip = SSM ? args.skip[head] : 0.0f;
    uint position = positionOf(args.step, start);
    float* slot = args.state + uint64_t(args.step->state_slot[sequence]) * args.slot_floats
        + (head * V_DIM + columns.col) * K_DIM + columns.pair;
    float* state = slot + halfFloats(args, position);
    bool fresh = position == 0;
    UNROLL for (uint n = 0; n < K_DIM / 8; n++)
        UNROLL for (uint h = 0; h < 2; h++)
        {
            float2 x = loadAligned<8>((float2*)(state + 8 * h * K_DIM + 8 * n));
            columns.state[n][2 * h] = fresh ? 0.0f : x.x;
            columns.state[n][2 * h + 1] = fresh ? 0.0f : x.y;
        }

    for (uint i = 0; start < end; i++, start += CHUNK)
    {
        uint rows = min(end - start, CHUNK);
        columns.loadValues(args, head, start, rows);
        waitForCopies<0>();
        __syncthreads();
        bool has_next = start + CHUNK < end;
        if (STAGES > 1 && has_next) chunks.load(args, i + 1);
        if (exists)
        {
            columns.process(chunks.stage(i), skip);
            columns.store(args, head, start, rows);
        }
        if (STAGES > 1 || !has_next) continue;
        __syncthreads();
        chunks.load(args, i + 1);
    }
    if (!exists) return;
    state = slot + halfFloats(args, position + part.end - part.begin);
    UNROLL for (uint n = 0; n < K_DIM / 8; n++)
        UNROLL for (uint h = 0; h < 2; h++)
            storeAligned<8>((float2*)(state + 8 * h * K_DIM + 8 * n),
                float2(columns.state[n][2 * h], columns.state[n][2 * h + 1]));
}
