// GEMM of few slots of each expert on tensor cores (moe_glu, and the products of moe_down).
//
// A segment is up to BATCH slots of one expert, with all of its weight rows. The blocks share the
// segments of the step evenly, so that each reads the rows of few experts one after another. A tile
// has 16 weight rows, of both matrices of a gated product. Each of TEAMS teams multiplies a tile;
// its TEAM warps split the columns (split-K), by groups of 256. A warp converts a group of x once
// for a segment, and the sums of a team's warps are added up in shared memory.
//   X_TILES   tiles of 8 slots
//   TEAM      warps that split the columns of a tile
//   CHUNK     neighbouring tiles of a team that belong to one block
//   ROUND     tiles of a team whose sums are in shared memory at once, a multiple of CHUNK
//   EXPERTS   experts of the layer
//   WHOLE     the rows of an expert are whole chunks of all teams

#include "expert_rows.cuh"

#include "column_groups.cuh"

#define THREADS (WARPS * SUBGROUP)
#define SEGMENT BATCH
#include "expert_segments.cuh"

#define TILE 16
#define TEAMS (WARPS / TEAM)
#define MATRICES (PRODUCT == GLU ? 2 : 1)
#define GROUPS ((UNITS + GROUP_UNITS - 1) / GROUP_UNITS) // groups per row
#define TURNS ((GROUPS + TEAM - 1) / TEAM)               // groups of a row per warp
#define CHUNK_TILES (CHUNK * TEAMS)
#define PITCH (TILE + 4) // floats from slot to slot, so that the sums of a warp lie in different banks
#define WARP_SUMS (BATCH * PITCH)
#define TILE_SUMS (MATRICES * TEAM * WARP_SUMS + 16)

DYNAMIC_SHARED(sharedSums, ROUND * TEAMS * TILE_SUMS * 4);

/// Sums of tile `tile` of a round, of a matrix by one warp of the team: those of a slot are
/// contiguous.
DEVICE float* sumsOf(uint tile, uint matrix, uint member)
{
    return (float*)sharedSums + tile * TILE_SUMS + (matrix * TEAM + member) * WARP_SUMS;
}

/// Tiles whose sums are added up together: up to ROUND of each team, of one segment.
struct Round
{
    Chunk chunk; // first chunk
    uint tiles;  // tiles per team

    /// Begins with the first of the block's chunks, if there is one. chunks: chunks per segment.
    MEMBER explicit Round(uint chunks) : chunk(chunks) { count(chunks); }

    MEMBER void advance(uint chunks)
    {
        chunk.advance(chunks, tiles / CHUNK);
        if (chunk.exists()) count(chunks);
    }

    /// Returns the first tile of the round in the segment.
    MEMBER uint first() const { return chunk.place * CHUNK_TILES; }

private:
    MEMBER void count(uint chunks)
    {
        const uint left = min(chunks - chunk.place, chunk.last - chunk.index);
        tiles = min(left, uint(ROUND / CHUNK)) * CHUNK;
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

/// The steps of a warp in a round. In each turn it multiplies a group of columns of all tiles of
/// its team.
struct Steps
{
    uint turn = 0, i = 0, row; // row: the lane's row in tile i, counted over all experts

    MEMBER Steps(ARGS, const Round& round, const Warp& warp)
        : row(round.chunk.expert * args.rows + (round.first() + warp.team) * TILE + warp.lane / 4)
    {
    }

    MEMBER uint group(const Warp& warp) const { return warp.member + turn * TEAM; }
    MEMBER bool takes(const Warp& warp) const { return GROUPS % TEAM == 0 || group(warp) < GROUPS; }

    /// Advances to the next tile. Returns whether the round has another tile.
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
    {
        const uint row = steps.row + 8 * h;
        place.rows[h] = WHOLE ? row : min(row, (round.chunk.expert + 1) * args.rows - 1);
    }
    place.group = steps.group(warp);
    stored.load(place, warp.lane % 4, i);
}

/// Loads a group of columns of the slots of a round.
DEVICE void loadSlots(ARGS, GroupRows& x, const Round& round, uint group, uint lane)
{
    const auto rowOf
        = [&](uint b) { return rowAt(args, min(round.chunk.at + b, round.chunk.end - 1)); };
    StoredRows stored;
    stored.load(rowOf, group, lane);
    x.convert(stored, lane);
}

/// Adds the products of a matrix to the warp's sums of its tile, for the slots that exist.
DEVICE void addToSums(const GroupProducts& products, const GroupRows& x, const Round& round,
    const Steps& steps, uint matrix, const Warp& warp)
{
    float* sums = sumsOf(steps.i * TEAMS + warp.team, matrix, warp.member);
    UNROLL for (uint j = 0; j < X_TILES; j++)
    {
        const float4 d = products.of(x, j, warp.lane);
        UNROLL for (uint e = 0; e < 4; e++)
        {
            const uint b = 8 * j + 2 * (warp.lane % 4) + e % 2;
            if (round.chunk.at + b >= round.chunk.end) continue;
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
    for (uint index = thread; index < (round.chunk.end - round.chunk.at) * fours; index += THREADS)
    {
        const uint b = index / fours, tile = index % fours / (TILE / 4), r = index % (TILE / 4) * 4;
        const uint row = (round.first() + tile) * TILE + r;
        if (row >= args.rows) continue;
        const float4 sum = totalOf(tile, 0, b, r), up = totalOf(tile, MATRICES - 1, b, r);
#if OUT_Q8
        storeResultsQ8(args, round.chunk.at + b, round.chunk.expert, row, sum, up);
#else
        storeResults(args, round.chunk.at + b, round.chunk.expert, row, sum, up);
#endif
    }
}

/// Returns x in a way that hides its value from the compiler.
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
    const uint chunks = (args.rows + TILE * CHUNK_TILES - 1) / (TILE * CHUNK_TILES); // chunks per segment
    loadFormatTables(args.w, thread, THREADS);
    countSegments(args, thread);
    Round round(chunks);
    if (!round.chunk.exists()) return;
    Matrix matrices[MATRICES];
    UNROLL for (uint m = 0; m < MATRICES; m++) matrices[m] = m ? shifted(args.w, args.up) : args.w;
    Steps steps(args, round, warp);
    StoredGroup stored;
    UNROLL for (uint i = 0; i < 2; i++) load(args, stored, matrices[0], round, steps, warp, i);
    GroupRows x;
    uint segment = 0xffffffffu; // segment whose rows of x were converted last
    _Pragma("unroll 1") while (true)
    {
        const bool is_new = steps.i == 0 && (TURNS > 1 || segment != round.chunk.at);
        if (is_new && steps.takes(warp)) loadSlots(args, x, round, steps.group(warp), warp.lane);
        segment = round.chunk.at;
        Steps next = steps;
        const bool ends = !next.advance(round.tiles);
        Round later = round;
        if (ends)
        {
            later.advance(chunks);
            next = later.chunk.exists() ? Steps(args, later, warp) : steps;
        }
        // The next weights are loaded as soon as those of this step have been multiplied. The last step
        // loads its own weights again.
        const uint positive[] = {round.chunk.end, round.chunk.last, chunks, round.tiles};
        UNROLL for (uint m = 0; m < MATRICES; m++)
        {
            GroupProducts products(stored, warp.lane % 4);
            const bool is_last = m + 1 == MATRICES;
            UNROLL for (uint i = 0; i < 2; i++)
            {
                // The compiler does not move these loads after later products, because this branch,
                // which is never taken, has a condition that it does not know.
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
        if (!later.chunk.exists()) break;
        __syncthreads();
        round = later;
    }
}
