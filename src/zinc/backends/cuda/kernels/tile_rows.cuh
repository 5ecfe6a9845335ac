// Where rows of 16-bit numbers lie in shared memory, so that loads of eight rows of 16 bytes have no
// bank conflicts (loadMatrices of mma.cuh).

#pragma once

#include "prelude.cuh"

/// Rows of CHUNKS chunks of 16 bytes. If CHUNKS is a multiple of eight, the chunks of a row are
/// permuted. Otherwise rows have an odd pitch.
template <uint CHUNKS> struct TileRows
{
    static constexpr uint PITCH = CHUNKS % 8 == 0 ? CHUNKS : CHUNKS | 1;

    /// Returns the chunks of a tile of `rows` rows.
    MEMBER static constexpr uint size(uint rows) { return rows * PITCH; }

    /// Returns the index of a chunk of a row in the tile.
    MEMBER static uint index(uint row, uint chunk)
    {
        return row * PITCH + (CHUNKS % 8 == 0 ? chunk ^ row % 8 : chunk);
    }
};
