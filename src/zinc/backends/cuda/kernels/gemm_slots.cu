// GEMM of few slots of each expert on tensor cores (moe_glu, and the products of moe_down).
//
// A segment is up to BATCH slots of one expert, with all of its weight rows. The blocks share the
// segments of the step evenly, so that each reads the rows of few experts one after another. A tile
// has 16 weight rows, of both matrices of a gated product. TEAMS teams of TEAM warps multiply a tile
// each; the warps of a team split the columns, by groups of 256. A warp converts a group of x once
// for a segment, and the sums of a tile meet in shared memory.
//   X_TILES   tiles of 8 slots
//   TEAM      warps that split the columns of a tile
//   CHUNK     neighbouring tiles of a team that belong to one block
//   ROUND     tiles of a team whose sums are in shared memory at once, a multiple of CHUNK
//   EXPERTS   experts of the layer
//   WHOLE     the rows of an expert are whole chunks of all teams

#include "expert_rows.cuh"

#include "column_groups.cuh"

#define THREADS (WARPS * SUBGROUP)
#define BATCH (8 * X_TILES)
#define TILE 16
#define TEAMS (WARPS / TEAM)
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define GROUPS ((UNITS + GROUP_UNITS - 1) / GROUP_UNITS) // of a row
#define TURNS ((GROUPS + TEAM - 1) / TEAM)               // groups of a row for one warp
#define CHUNK_TILES (CHUNK * TEAMS)
#define PITCH (TILE + 4) // of the sums of a slot, so that those of a warp lie in different banks
#define WARP_SUMS (BATCH * PITCH)
#define TILE_SUMS (MATRICES * TEAM * WARP_SUMS + 16)

DYNAMIC_SHARED(sharedSums, ROUND * TEAMS * TILE_SUMS * 4);
SHARED uint starts[EXPERTS + 1];        // position of the first slot of each expert
SHARED uint firstSegments[EXPERTS + 1]; // segments of earlier experts
SHARED uint warpSegments[WARPS];

/// Sums of tile `tile` of a round, of a matrix by one warp of the team: those of a slot are
/// contiguous.
DEVICE float* sumsOf(uint tile, uint matrix, uint member)
{
    return (float*)sharedSums + tile * TILE_SUMS + (matrix * TEAM + member) * WARP_SUMS;
}

/// Counts the segments of each expert.
DEVICE void countSegments(ARGS, uint thread)
{
    constexpr uint EACH = (EXPERTS + THREADS - 1) / THREADS; // experts of a thread
    const uint lane = thread % SUBGROUP, warp = thread / SUBGROUP;
    uint counts[EACH], sum = 0;
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        const uint e = min(thread * EACH + i, uint(EXPERTS));
        const uint at = uint(args.starts[e]), end = uint(args.starts[min(e + 1, uint(EXPERTS))]);
        starts[e] = at;
        counts[i] = (end - at + BATCH - 1) / BATCH;
        sum += counts[i];
    }
    if (thread == 0) starts[EXPERTS] = uint(args.starts[EXPERTS]);
    uint before = warpPrefixSum(sum);
    if (lane == SUBGROUP - 1) warpSegments[warp] = before + sum;
    __syncthreads();
    for (uint w = 0; w < warp; w++) before += warpSegments[w];
    UNROLL for (uint i = 0; i < EACH; i++)
    {
        const uint e = thread * EACH + i;
        if (e <= EXPERTS) firstSegments[e] = before;
        before += counts[i];
    }
    if (thread == THREADS - 1) firstSegments[EXPERTS] = before;
    __syncthreads();
}

/// Tiles whose sums meet at once: up to ROUND of each team, of one segment.
struct Round
{
    uint chunk, last_chunk; // of the block
    uint expert, at, end;   // positions of the segment's slots
    uint first, tiles;      // the first tile, and the tiles of a team

    /// Begins with the first of the block's chunks, if it has any.
    MEMBER explicit Round(uint chunks)
    {
        const uint n = firstSegments[EXPERTS] * chunks;
        chunk = n * blockIdx.x / gridDim.x;
        last_chunk = n * (blockIdx.x + 1) / gridDim.x;
        expert = 0;
        for (uint step = 1u << 15; step > 0; step /= 2)
            if (expert + step < EXPERTS && firstSegments[expert + step] <= chunk / chunks)
                expert += step;
        if (exists()) find(chunks);
    }

    MEMBER bool exists() const { return chunk < last_chunk; }

    MEMBER void advance(uint chunks)
    {
        chunk += tiles / CHUNK;
        if (exists()) find(chunks);
    }

private:
    /// Finds the slots and tiles of the chunk, given an expert that is not after its own.
    MEMBER void find(uint chunks)
    {
        const uint segment = chunk / chunks, begin = chunk % chunks;
        while (firstSegments[expert + 1] <= segment) expert++;
        at = starts[expert] + (segment - firstSegments[expert]) * BATCH;
        end = min(at + BATCH, starts[expert + 1]);
        first = begin * CHUNK_TILES;
        tiles = min(min(chunks - begin, last_chunk - chunk), uint(ROUND / CHUNK)) * CHUNK;
    }
};

/// A warp: its team, and one of TEAM parts of the columns.
struct Warp
{
    uint team, member, lane;

    MEMBER explicit Warp(uint thread)
        : team(thread / SUBGROUP / TEAM)
        , member(thread / SUBGROUP % TEAM)
        , lane(thread % SUBGROUP)
    {
    }
};

/// What a warp multiplies in a round: in each turn, a group of columns of all tiles of its team.
struct Steps
{
    uint turn = 0, i = 0, row; // row: of the lane in tile i, of all experts

    MEMBER Steps(ARGS, const Round& round, const Warp& warp)
        : row(round.expert * args.rows + (round.first + warp.team) * TILE + warp.lane / 4)
    {
    }

    MEMBER uint group(const Warp& warp) const { return warp.member + turn * TEAM; }
    MEMBER bool takes(const Warp& warp) const { return GROUPS % TEAM == 0 || group(warp) < GROUPS; }

    /// Goes to the next tile. Returns whether the round has one.
    MEMBER bool advance(uint tiles)
    {
        i++, row += TEAMS * TILE;
        if (i < tiles) return true;
        row -= tiles * (TEAMS * TILE);
        i = 0;
        return ++turn < TURNS;
    }
};

/// Loads a lane's weights of a matrix: the units c + 4 i of its group.
DEVICE void load(ARGS, StoredGroup& stored, const Matrix& w, const Round& round, const Steps& steps,
    const Warp& warp, uint i)
{
    if (!steps.takes(warp)) return;
    GroupPlace place;
    place.w = w;
    UNROLL for (uint h = 0; h < 2; h++)
        place.rows[h]
            = WHOLE ? steps.row + 8 * h : min(steps.row + 8 * h, (round.expert + 1) * args.rows - 1);
    place.group = steps.group(warp);
    stored.load(place, warp.lane % 4, i);
}

/// Loads a group of columns of the slots of a round.
DEVICE void loadSlots(ARGS, GroupRows& x, const Round& round, uint group, uint lane)
{
    uint8_t* rows[X_TILES];
    UNROLL for (uint j = 0; j < X_TILES; j++)
        rows[j] = rowAt(args, min(round.at + 8 * j + lane / 4, round.end - 1));
    StoredRows stored;
    stored.load(rows, group, lane);
    x.convert(stored, lane);
}

/// Adds the products of a matrix to the warp's sums of its tile, for the slots that exist.
DEVICE void addToSums(const GroupProducts& products, const GroupRows& x, const Round& round,
    const Steps& steps, uint matrix, const Warp& warp)
{
    float* sums = sumsOf(steps.i * TEAMS + warp.team, matrix, warp.member);
    UNROLL for (uint j = 0; j < X_TILES; j++)
    {
        const float4 d = products.of(x, j);
        UNROLL for (uint e = 0; e < 4; e++)
        {
            const uint b = 8 * j + 2 * (warp.lane % 4) + e % 2;
            if (round.at + b >= round.end) continue;
            float& sum = sums[b * PITCH + warp.lane / 4 + 8 * (e / 2)];
            sum = TURNS > 1 && steps.turn > 0 ? sum + d[e] : d[e];
        }
    }
}

/// Returns the sums of all warps of a team for four neighbouring rows of a tile.
DEVICE float4 totalOf(uint tile, uint matrix, uint b, uint r)
{
    float4 sum = *(float4*)(sumsOf(tile, matrix, 0) + b * PITCH + r);
    UNROLL for (uint m = 1; m < (TEAM < GROUPS ? TEAM : GROUPS); m++)
        sum += *(float4*)(sumsOf(tile, matrix, m) + b * PITCH + r);
    return sum;
}

/// Stores the results of a round. Eight neighbouring threads store 32 rows of a slot.
DEVICE void storeRound(ARGS, const Round& round, uint thread)
{
    const uint fours = round.tiles * TEAMS * (TILE / 4);
    for (uint index = thread; index < (round.end - round.at) * fours; index += THREADS)
    {
        const uint b = index / fours, tile = index % fours / (TILE / 4), r = index % (TILE / 4) * 4;
        const uint row = (round.first + tile) * TILE + r;
        if (row >= args.rows) continue;
        const float4 sum = totalOf(tile, 0, b, r), up = totalOf(tile, MATRICES - 1, b, r);
#if OUT_Q8
        storeResultsQ8(args, round.at + b, round.expert, row, sum, up);
#else
        storeResults(args, round.at + b, round.expert, row, sum, up);
#endif
    }
}

/// Returns x, which the compiler cannot know.
DEVICE uint opaque(uint x)
{
#ifndef ZINC_EMULATED
    asm volatile("" : "+r"(x));
#endif
    return x;
}

KERNEL(gemm_slots, Arguments)
{
    const uint thread = threadIdx.x;
    const Warp warp(thread);
    const uint chunks = (args.rows + TILE * CHUNK_TILES - 1) / (TILE * CHUNK_TILES); // of a segment
    loadFormatTables(args.w, thread, THREADS);
    countSegments(args, thread);
    Round round(chunks);
    if (!round.exists()) return;
    Matrix matrices[MATRICES];
    UNROLL for (uint m = 0; m < MATRICES; m++) matrices[m] = m ? shifted(args.w, args.up) : args.w;
    Steps steps(args, round, warp);
    StoredGroup stored;
    UNROLL for (uint i = 0; i < 2; i++) load(args, stored, matrices[0], round, steps, warp, i);
    GroupRows x;
    uint segment = 0xffffffffu; // that x belongs to
    _Pragma("unroll 1") while (true)
    {
        const bool is_new = steps.i == 0 && (TURNS > 1 || segment != round.at);
        if (is_new && steps.takes(warp)) loadSlots(args, x, round, steps.group(warp), warp.lane);
        segment = round.at;
        Steps next = steps;
        const bool ends = !next.advance(round.tiles);
        Round later = round;
        if (ends)
        {
            later.advance(chunks);
            next = later.exists() ? Steps(args, later, warp) : steps;
        }
        // The next weights are loaded as soon as those of this step have been multiplied. Past the
        // last step its own are loaded again.
        const uint positive[] = {round.end, round.last_chunk, chunks, round.tiles};
        UNROLL for (uint m = 0; m < MATRICES; m++)
        {
            GroupProducts products(stored, warp.lane % 4);
            const bool is_last = m + 1 == MATRICES;
            UNROLL for (uint i = 0; i < 2; i++)
            {
                // Branches that the compiler cannot tell to be taken keep loads before later products.
                if (opaque(positive[2 * m + i]) == 0) continue;
                if (steps.takes(warp)) products.add(stored, x, i);
                const Matrix& w = matrices[is_last ? 0 : m + 1];
                load(args, stored, w, later, is_last ? next : steps, warp, i);
            }
            if (steps.takes(warp)) addToSums(products, x, round, steps, m, warp);
        }
        steps = next;
        if (!ends) continue;
        __syncthreads();
        storeRound(args, round, thread);
        if (!later.exists()) break;
        __syncthreads();
        round = later;
    }
}
