// The chunkwise delta rule (zinc.ops.recurrent), in two kernels. Rows of a step are divided into chunks
// of CHUNK tokens of one sequence. With S the state before a chunk, G_t the product of the decays up
// to token t, and Q, K, V the rows of the chunk:
//
//     D = T (V - G K S)                    T = (1 + tril(b (K K^T) G_t / G_j))^-1 b
//     O = G Q S + P D                      P = tril(Q K^T G_t / G_j), with the diagonal
//     S' = G_last S + K^T (G_last / G_t) D
//
// delta_chunks makes Q, K, T and P of all chunks at once. delta_scan goes through the chunks of a
// sequence. Matrices are pairs of bfloat16 numbers (split_floats.cuh) that lie as in shared memory:
//
//     slot of a chunk   [key heads][K high, K low, Q high, Q low], each [CHUNK, K_DIM]
//                       [value heads][T high, T low, P high, P low], each [CHUNK, CHUNK], then
//                       float G_t [CHUNK], G_last / G_t [CHUNK]
//
// Rows after the end of a sequence have zeros in Q, K and b, and no decay.
//   CHANNELS  each column of Q and K has a decay (Kimi Delta Attention). delta_channels replaces
//             delta_chunks, and multiplies the matrices of a value head with the decays:
//
//     slot of a chunk   [value heads][G K high, G K low, G Q high, G Q low,
//                       (G_last / G_t) K high, (G_last / G_t) K low], each [CHUNK, K_DIM]
//                       [value heads][T high, T low, P high, P low], then float G_last [K_DIM]
//
//   SSM       the scan of Mamba-2 (zinc.ops.ssm), whose C, B and x are Q, K and V. It has no T, as D is
//             V. P has a factor dt_j in column j, and G_last / G_t the factor dt_t. Q and K are not
//             normalised, and skip V is added to O
//   ROLLBACK  slots are those of delta_slot.cuh, and the kernels run a part of the rows
//             (delta_parts.cuh)

#pragma once

#include "arguments.h"

using Arguments = DeltaChunkArguments;

#include "delta_parts.cuh"
#include "row_blocks.cuh"
#include "split_floats.cuh"
#include "tile_rows.cuh"

#define CHUNK 32

#ifndef CHANNELS
#define CHANNELS 0
#endif

typedef TileRows<K_DIM / 8> KeyRows; // rows of K and Q
typedef TileRows<CHUNK / 8> SquareRows; // rows of T and P
#define KEY_TILE KeyRows::size(CHUNK) // chunks of 16 bytes per matrix of keys
#define SQUARE_TILE SquareRows::size(CHUNK)
#define GATES (CHANNELS ? K_DIM / 4 : 2 * CHUNK / 4)
#define KEY_PART ((CHANNELS ? 6 : 4) * KEY_TILE) // chunks of 16 bytes per key head
#define P_AT (SSM ? 0 : 2 * SQUARE_TILE) // from the start of a value head's part
#define GATES_AT (P_AT + 2 * SQUARE_TILE)
#define VALUE_PART (GATES_AT + GATES) // chunks of 16 bytes per value head

/// Returns the number of heads with a key part.
DEVICE uint keyParts(ARGS) { return CHANNELS ? args.n_v_heads : args.n_k_heads; }

DEVICE uint4* slotAt(ARGS, uint slot)
{
    return (uint4*)args.chunks
        + uint64_t(slot) * (keyParts(args) * KEY_PART + args.n_v_heads * VALUE_PART);
}

DEVICE uint4* keyPart(ARGS, uint slot, uint k_head) { return slotAt(args, slot) + k_head * KEY_PART; }

DEVICE uint4* valuePart(ARGS, uint slot, uint head)
{
    return slotAt(args, slot) + keyParts(args) * KEY_PART + head * VALUE_PART;
}

DEVICE uint keyHeadOf(ARGS, uint head)
{
    return GROUPED ? head / (args.n_v_heads / args.n_k_heads) : head % args.n_k_heads;
}

/// Returns the first column of Q (part 0), K (part 1) or V (part 2) in a row.
DEVICE uint firstColumn(ARGS, uint part)
{
    if (SSM) return part == 2 ? 0 : args.n_v_heads * V_DIM + (1 - part) * args.n_k_heads * K_DIM;
    return part * args.n_k_heads * K_DIM;
}

/// Loads the parts of 16 rows and 16 columns of a matrix as right operands: rows of B^T starting at `row`,
/// starting at chunk `chunk`. `low` lies `tile` chunks after `high`.
template <class Rows>
DEVICE void loadSplit(const uint4* matrix, uint tile, uint row, uint chunk, uint (&high)[4], uint (&low)[4])
{
    uint lane = threadIdx.x % SUBGROUP;
    uint at = Rows::index(row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2);
    loadMatrices(high, matrix + at);
    loadMatrices(low, matrix + tile + at);
}

template <uint n> DEVICE void clear(float (&sums)[n][4])
{
    UNROLL for (uint i = 0; i < n; i++)
        UNROLL for (uint j = 0; j < 4; j++) sums[i][j] = 0;
}
