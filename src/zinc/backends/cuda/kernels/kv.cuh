// The KV cache of a layer: blocks with a plane for each KV head (zinc.gpu.kv_layout). A chunk is
// eight neighbouring numbers of one position.
//   KV_Q8     numbers are Q8_0 instead of float16
//   V_FROM_K  values are the last dimensions of keys

#pragma once

#include "prelude.cuh"

#if V_FROM_K
#define SKIP_V ((HEAD_DIM - HEAD_DIM_V) / 8)
#define V_WIDTH HEAD_DIM
#else
#define SKIP_V 0
#define V_WIDTH HEAD_DIM_V
#endif

struct Chunk
{
#if KV_Q8
    uint2 q;
    half d;
#else
    uint4 h;
#endif
};

/// The address of a chunk. Other chunks are loaded at constant offsets from it, without address
/// arithmetic.
struct Chunks
{
    uint8_t* numbers;
#if KV_Q8
    half* scales;
#endif

    /// The chunk that lies `tokens` positions and `chunks` chunks (a multiple of 4) after this
    /// one.
    MEMBER Chunk at(uint tokens, uint chunks, uint head_dim)
    {
        uint width = (head_dim + 15) / 16 * 16;
        Chunk c;
#if KV_Q8
        c.q = loadAligned<8>((uint2*)(numbers + (tokens * width + 8 * chunks)));
        c.d = scales[tokens * ((head_dim + 31) / 32) + chunks / 4];
#else
        c.h = loadAligned<16>((uint4*)(numbers + 2 * (tokens * width + 8 * chunks)));
#endif
        return c;
    }
};

/// The numbers of one head in one block.
struct Plane
{
    uint8_t* start;
    uint block_tokens;

    MEMBER Chunks chunksFrom(uint token, uint chunk, uint head_dim)
    {
        uint width = (head_dim + 15) / 16 * 16;
        Chunks c;
#if KV_Q8
        c.numbers = start + (token * width + 8 * chunk);
        c.scales = (half*)(start + block_tokens * width)
            + (token * ((head_dim + 31) / 32) + chunk / 4);
#else
        c.numbers = start + 2 * (token * width + 8 * chunk);
#endif
        return c;
    }

    MEMBER Chunk chunkAt(uint token, uint chunk, uint head_dim)
    {
        return chunksFrom(token, chunk, head_dim).at(0, 0, head_dim);
    }
};

DEVICE void unpackChunk(Chunk c, float (&v)[8])
{
    UNROLL for (uint i = 0; i < 4; i++)
    {
#if KV_Q8
        v[i] = float(c.d) * float(int(c.q.x << (24 - 8 * i)) >> 24);
        v[i + 4] = float(c.d) * float(int(c.q.y << (24 - 8 * i)) >> 24);
#else
        v[2 * i] = f16tof32(c.h[i] & 0xffffu);
        v[2 * i + 1] = f16tof32(c.h[i] >> 16);
#endif
    }
}

DEVICE uint packPair(float a, float b) { return f32tof16(a) | f32tof16(b) << 16; }

DEVICE uint4 packHalves(float4 a, float4 b)
{
    return uint4(packPair(a.x, a.y), packPair(a.z, a.w), packPair(b.x, b.y), packPair(b.z, b.w));
}

/// Returns scale * byte for the four signed bytes of a word, as float16.
DEVICE uint2 packHalves(uint bytes, half scale)
{
    float v[4];
    UNROLL for (uint i = 0; i < 4; i++) v[i] = float(scale) * float(int(bytes << (24 - 8 * i)) >> 24);
    return uint2(packPair(v[0], v[1]), packPair(v[2], v[3]));
}

DEVICE uint4 packHalves(Chunk c)
{
#if KV_Q8
    return uint4(packHalves(c.q.x, c.d), packHalves(c.q.y, c.d));
#else
    return c.h;
#endif
}

/// Returns eight numbers as the cache stores them. The four lanes of 32 columns call it together.
DEVICE Chunk quantizedChunk(float4 a, float4 b)
{
    Chunk c;
#if KV_Q8
    float top = neighbourMax<4>(largestOf(max(abs(a), abs(b))));
    float d = top / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
    uint4 low = uint4(int4(round(a * inverse))) & 0xffu;
    uint4 high = uint4(int4(round(b * inverse))) & 0xffu;
    c.q = uint2(low.x | low.y << 8 | low.z << 16 | low.w << 24,
                high.x | high.y << 8 | high.z << 16 | high.w << 24);
    c.d = half(d);
#else
    c.h = packHalves(a, b);
#endif
    return c;
}

/// Stores a chunk of a position.
DEVICE void storeChunk(Plane plane, uint token, uint chunk, uint head_dim, Chunk c)
{
    Chunks to = plane.chunksFrom(token, chunk, head_dim);
#if KV_Q8
    storeAligned<8>((uint2*)to.numbers, c.q);
    if (chunk % 4 == 0) to.scales[0] = c.d;
#else
    storeAligned<16>((uint4*)to.numbers, c.h);
#endif
}
