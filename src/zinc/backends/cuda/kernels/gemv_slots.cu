// GEMV of few slots of each expert (moe_glu, and the products of moe_down).
//
// A segment is up to SEGMENT slots of one expert, with all of its weight rows. The blocks share the
// segments of the step evenly. In a pass, LANES lanes of a warp multiply ROWS rows of each matrix.
// A lane loads its units of the next pass as soon as those of this pass have been multiplied. Rows
// of x lie in shared memory, where the results of a chunk are collected before they are stored.
//   ROWS     weight rows of a lane in a pass
//   CHUNK    weight rows of a chunk, all passes of which one block multiplies
//   EXPERTS  experts of the layer
//   WHOLE    the rows of an expert are whole chunks

#include "expert_rows.cuh"

#include "product.cuh"
#include "sums.cuh"

#define THREADS (WARPS * SUBGROUP)
#include "expert_segments.cuh"

#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define UNITS ((COLS + UNIT - 1) / UNIT)
#define LANES (UNITS > 16 ? 32 : UNITS > 8 ? 16 : 8) // lanes that share a weight row
#define DEEP ((UNITS + LANES - 1) / LANES)           // units of a row per lane
#define SPANS (SUBGROUP / LANES)
#define PASS_ROWS (WARPS * SPANS * ROWS)
#define PASSES (CHUNK / PASS_ROWS)

static_assert(CHUNK % PASS_ROWS == 0 && (!OUT_Q8 || CHUNK % 32 == 0));

SHARED uint4 xBytes[SEGMENT][2][UNITS]; // the first half of each unit, and the second
SHARED float2 xScales[SEGMENT][UNITS];
SHARED float4 results[2][MATRICES][SEGMENT][CHUNK / 4];

/// A pass over the rows of a chunk.
struct Pass
{
    Chunk chunk;
    uint pass = 0;

    MEMBER explicit Pass(uint chunks) : chunk(chunks) {}

    /// Advances to the next pass, if there is one. Returns whether that pass is in another chunk.
    MEMBER bool advance(uint chunks)
    {
        if (++pass < PASSES) return false;
        pass = 0;
        chunk.advance(chunks, 1);
        return true;
    }
};

/// The lane's weights of a pass.
struct PassWeights
{
    PendingWeights units[DEEP][MATRICES][ROWS];

    /// Loads unit `deep` of row r. row: first row of the lane, counted over all experts. last: last row
    /// of the expert.
    MEMBER void load(const Matrix& w, uint matrix, uint row, uint last, uint r, uint deep, uint lane)
    {
        const uint unit = min(lane % LANES + deep * LANES, UNITS - 1);
        const uint at = WHOLE ? row + r : min(row + r, last);
        units[deep][matrix][r] = prefetchWeights(w, at * UNITS + unit);
    }
};

/// Returns the lane's first row of a pass in its chunk.
DEVICE uint rowOf(const Pass& pass, uint thread)
{
    return pass.pass * PASS_ROWS + thread / LANES * ROWS;
}

/// Copies the rows of x of a segment to shared memory.
DEVICE void copyRows(ARGS, const Chunk& chunk, uint thread)
{
    for (uint i = thread; i < (chunk.end - chunk.at) * 2 * UNITS; i += THREADS)
    {
        const uint j = i / (2 * UNITS), half = i % (2 * UNITS);
        uint8_t* row = rowAt(args, chunk.at + j);
        xBytes[j][half % 2][half / 2] = loadAligned<16>((uint4*)row + half);
        if (half % 2 == 0) xScales[j][half / 2] = loadAligned<8>((float2*)(row + COLS) + half / 2);
    }
}

DEVICE Activations activationsOf(uint j, uint deep, uint lane)
{
    const uint at = lane % LANES + deep * LANES, unit = min(at, UNITS - 1);
    Activations x;
    x.a = xBytes[j][0][unit];
    x.b = xBytes[j][1][unit];
    const float2 ds = at < UNITS ? xScales[j][unit] : float2(0.0f);
    x.d = ds.x;
    x.s = ds.y;
    return x;
}

/// A unit of x. With CENTRED_BITS, weights stay unsigned, so they are too large by a constant.
/// `first` and `second` are corrections for the halves of a unit: minus that constant times the sum
/// of x.
struct UnitOfX
{
    Activations x;
    int first, second;

    UnitOfX() = default;
    MEMBER explicit UnitOfX(const Activations& x) : x(x), first(0), second(0)
    {
#ifdef CENTRED_BITS
        const uint minus = 0xffffffffu; // four times -1
        UNROLL for (uint i = 0; i < 4; i++)
        {
            first = dot4(minus, x.a[i], first);
            second = dot4(minus, x.b[i], second);
        }
        first *= 1 << (CENTRED_BITS - 1);
        second *= 1 << (CENTRED_BITS - 1);
#endif
    }
};

#ifdef CENTRED_BITS
DEVICE Unit unitOf(const PendingWeights& p, uint unit) { return decodeUnsigned(p, unit); }

DEVICE float dotOf(const Unit& w, const UnitOfX& x)
{
    int first = x.first, second = x.second;
    UNROLL for (uint i = 0; i < 4; i++)
    {
        first = dot4(w.q[i], x.x.a[i], first);
        second = dot4(w.q[i + 4], x.x.b[i], second);
    }
    return x.x.d * (w.d.x * float(first) + (HALVES ? w.d.y : w.d.x) * float(second));
}
#else
DEVICE Unit unitOf(const PendingWeights& p, uint unit) { return finishWeights(p, unit); }
DEVICE float dotOf(const Unit& w, const UnitOfX& x) { return dotUnits(w, x.x); }
#endif

/// Multiplies the weights of a pass with N rows of x, and loads those of the next pass.
template <uint N>
DEVICE void multiply(ARGS, PassWeights& weights, const Matrix (&matrices)[MATRICES], uint next_row,
    uint next_last, float* to, uint row, uint lane)
{
    constexpr uint SUMS = MATRICES * ROWS * N;
    float sums[SUMS] = {};
    UNROLL for (uint d = 0; d < DEEP; d++)
    {
        UnitOfX x[N];
        UNROLL for (uint j = 0; j < N; j++) x[j] = UnitOfX(activationsOf(j, d, lane));
        UNROLL for (uint m = 0; m < MATRICES; m++)
            UNROLL for (uint r = 0; r < ROWS; r++)
            {
                const Unit w = unitOf(weights.units[d][m][r], lane % LANES + d * LANES);
                UNROLL for (uint j = 0; j < N; j++)
                    sums[(m * N + j) * ROWS + r] += dotOf(w, x[j]);
                weights.load(matrices[m], m, next_row, next_last, r, d, lane);
            }
    }
    const ReducedSums<SUMS, LANES> reduced = reduceSums<SUMS, LANES>(sums, lane % LANES);
    if (!reduced.is_owner) return;
    UNROLL for (uint k = 0; k < reduced.COUNT; k++)
    {
        const uint i = reduced.first + k, m = i / (N * ROWS), j = i / ROWS % N;
        to[(m * SEGMENT + j) * CHUNK + row + i % ROWS] = reduced.sums[k];
    }
}

/// Stores the results of a chunk.
DEVICE void storeChunk(ARGS, const Chunk& chunk, uint buffer, uint thread)
{
    for (uint i = thread; i < (chunk.end - chunk.at) * (CHUNK / 4); i += THREADS)
    {
        const uint j = i / (CHUNK / 4), four = i % (CHUNK / 4), row = chunk.place * CHUNK + 4 * four;
        if (row >= args.rows) continue;
        const float4 sum = results[buffer][0][j][four], up = results[buffer][MATRICES - 1][j][four];
#if OUT_Q8
        storeResultsQ8(args, chunk.at + j, chunk.expert, row, sum, up);
#else
        storeResults(args, chunk.at + j, chunk.expert, row, sum, up);
#endif
    }
}

KERNEL(gemv_slots, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP;
    const uint chunks = (args.rows + CHUNK - 1) / CHUNK; // chunks per segment
    loadFormatTables(args.w, thread, THREADS);
    countSegments(args, thread);
    Pass pass(chunks);
    if (!pass.chunk.exists()) return;
    Matrix matrices[MATRICES];
    UNROLL for (uint m = 0; m < MATRICES; m++) matrices[m] = m ? shifted(args.w, args.up) : args.w;
    PassWeights weights;
    {
        const Chunk& chunk = pass.chunk;
        const uint begin = chunk.expert * args.rows;
        UNROLL for (uint d = 0; d < DEEP; d++)
            UNROLL for (uint m = 0; m < MATRICES; m++)
                UNROLL for (uint r = 0; r < ROWS; r++)
                    weights.load(matrices[m], m, begin + chunk.place * CHUNK + rowOf(pass, thread),
                        begin + args.rows - 1, r, d, lane);
    }
    uint segment = 0xffffffffu, buffer = 0; // segment: the one whose rows are in shared memory
    _Pragma("unroll 1") while (true)
    {
        const Chunk chunk = pass.chunk;
        if (segment != chunk.at)
        {
            __syncthreads();
            copyRows(args, chunk, thread);
            __syncthreads();
            segment = chunk.at;
        }
        Pass next = pass;
        const bool ends = next.advance(chunks), is_last = !next.chunk.exists();
        if (is_last) next = pass; // loads the weights of the last pass again
        const uint begin = next.chunk.expert * args.rows;
        const uint next_row = begin + next.chunk.place * CHUNK + rowOf(next, thread);
        const uint next_last = begin + args.rows - 1, row = rowOf(pass, thread);
        float* to = (float*)results[buffer];
        const uint slots = chunk.end - chunk.at;
        if (slots == 1)
            multiply<1>(args, weights, matrices, next_row, next_last, to, row, lane);
        else if (SEGMENT == 2 || slots == 2)
            multiply<2>(args, weights, matrices, next_row, next_last, to, row, lane);
        else
            multiply<SEGMENT>(args, weights, matrices, next_row, next_last, to, row, lane);
        pass = next;
        if (!ends) continue;
        __syncthreads();
        storeChunk(args, chunk, buffer, (thread + chunk.index * SUBGROUP) % THREADS);
        buffer = 1 - buffer;
        if (is_last) break;
    }
}
