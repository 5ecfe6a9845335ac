// The square matrices of a chunk (delta_chunk.cuh) as the first kernel stores them.

#pragma once

#include "delta_chunk.cuh"

/// Returns the chunk at a slot. It has no rows if the slot is empty. States that can be rolled back are
/// scanned over whole chunks only.
DEVICE RowBlock findChunk(StepHeader* step, uint slot)
{
    RowBlock chunk = findBlock<CHUNK>(step, slot);
#if ROLLBACK
    if (chunk.rows == 0) return chunk;
    const PartRows scanned = rowsOfPart(step, chunk.sequence, SCAN);
    chunk.start += scanned.begin - chunk.first;
    chunk.rows = chunk.start < scanned.end ? CHUNK : 0;
#endif
    return chunk;
}

/// Stores a number of column `col` of row `row` of a square matrix in its two parts.
DEVICE void storeSquare(uint4* matrix, uint row, uint col, float x)
{
    SplitPair pair(x, 0.0f);
    uint16_t* to = (uint16_t*)(matrix + SquareRows::index(row, col / 8)) + col % 8;
    to[0] = uint16_t(pair.high);
    to[8 * SQUARE_TILE] = uint16_t(pair.low);
}

/// Stores (1 + L)^-1 b for a strictly lower triangular matrix L; its upper part is not read. A lane has
/// a column and the number of b for that column. Rows of L are PITCH floats apart and aligned to 16
/// bytes.
template <uint PITCH> DEVICE void storeInverse(uint4* to, const float* matrix, float b, uint lane)
{
    float x[CHUNK]; // solved by forward substitution
    UNROLL for (uint t = 0; t < CHUNK; t++)
    {
        x[t] = lane == t ? 1.0f : 0.0f;
        UNROLL for (uint i = 0; i + 4 <= (t + 3) / 4 * 4; i += 4)
        {
            float4 row = loadAligned<16>((float4*)(matrix + t * PITCH + i));
            UNROLL for (uint j = 0; j < 4; j++)
                if (i + j < t) x[t] -= row[j] * x[i + j];
        }
        storeSquare(to, t, lane, x[t] * b);
    }
}
