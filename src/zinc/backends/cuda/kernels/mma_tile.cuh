// Tiles of the KV cache in shared memory, as operands of tensor cores (mma.cuh).

#pragma once

#include "kv.cuh"
#include "mma.cuh"
#include "q8.cuh"
#include "tile_rows.cuh"

/// Returns 2^x, with denormal results as 0.
DEVICE float exp2Fast(float x)
{
#ifdef ZINC_EMULATED
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/// A tile of ROWS positions of CHUNKS chunks of float16 numbers, which THREADS_ threads stage.
template <uint ROWS, uint CHUNKS, uint THREADS_> struct StagedTile
{
    static constexpr uint SIZE = TileRows<CHUNKS>::size(ROWS); // size in chunks
    static constexpr uint EACH = (ROWS * CHUNKS + THREADS_ - 1) / THREADS_; // chunks per thread

    MEMBER static uint index(uint row, uint chunk) { return TileRows<CHUNKS>::index(row, chunk); }

    /// Calls `act(number, row, chunk)` for each chunk of this thread.
    template <class Act> MEMBER static void each(Act act)
    {
        UNROLL for (uint i = 0; i < EACH; i++)
        {
            uint at = i * THREADS_ + threadIdx.x;
            if (ROWS * CHUNKS % THREADS_ == 0 || at < ROWS * CHUNKS)
                act(i, at / CHUNKS, at % CHUNKS);
        }
    }

#if KV_Q8
    Chunk chunks[EACH];

    /// Loads positions of a plane into registers, starting at `token` and at chunk `first`.
    MEMBER void load(uint4*, Plane plane, uint token, uint first, uint width)
    {
        each([&](uint i, uint row, uint chunk) {
            chunks[i] = plane.chunkAt(token + row, first + chunk, width);
        });
    }

    /// Stores the loaded chunks as float16 numbers at `to` in shared memory.
    MEMBER void store(uint4* to)
    {
        each([&](uint i, uint row, uint chunk) { to[index(row, chunk)] = packHalves(chunks[i]); });
    }
#else
    /// Starts copies of positions of a plane, starting at `token` and at chunk `first`.
    MEMBER void load(uint4* to, Plane plane, uint token, uint first, uint width)
    {
        each([&](uint i, uint row, uint chunk) {
            copyAsync(to + index(row, chunk),
                plane.chunksFrom(token + row, first + chunk, width).numbers, true);
        });
    }

    MEMBER void store(uint4*) {}
#endif
};

/// Stores 32 columns, starting at `col`, of a row of 8-bit blocks (q8.cuh). The four lanes of a quad call
/// it together: lane `c` has columns 2c and 2c + 1 of each of four groups of eight.
DEVICE void storeQ8Quad(uint8_t* row, uint cols, uint col, const float (*v)[2], uint c)
{
    float top = 0;
    UNROLL for (uint n = 0; n < 4; n++) top = max(top, max(abs(v[n][0]), abs(v[n][1])));
    top = neighbourMax<4>(top);
    const float scale = inverseScale(top);
    int sum = 0;
    UNROLL for (uint n = 0; n < 4; n++)
    {
        int low = int(round(v[n][0] * scale)), high = int(round(v[n][1] * scale));
        sum += low + high;
        ((uint16_t*)(row + col))[4 * n + c] = uint16_t((low & 0xff) | high << 8);
    }
    sum = neighbourSum<4>(sum);
    if (c > 0) return;
    float d = top / 127.0f;
    float2* scales = (float2*)(row + (cols + 15) / 16 * 16);
    storeAligned<8>(scales + col / 32, float2(d, d * float(sum)));
}
