// Random numbers of sampled tokens, as zinc.ops.noise defines them.

#pragma once

#include "prelude.cuh"

constexpr uint GROUP_IDS = 1024, TOKEN_STREAM = 0, GROUP_STREAM = 1;

DEVICE uint2 philox(uint64_t seed, uint id, uint index, uint stream)
{
    uint x = id, y = index, z = stream, w = 0, low = uint(seed), high = uint(seed >> 32);
    for (int round = 0; round < 10; round++)
    {
        uint64_t a = uint64_t(0xd2511f53u) * x, b = uint64_t(0xcd9e8d57u) * z;
        x = uint(b >> 32) ^ y ^ low, y = uint(b);
        z = uint(a >> 32) ^ w ^ high, w = uint(a);
        low += 0x9e3779b9u, high += 0xbb67ae85u;
    }
    return uint2(x, y);
}

/// Returns -log(1 - u), where u is (word + 1/2) / 2^32.
DEVICE float exponential(uint word)
{
    if (word >= 0x40000000u) return -log((float(~word) + 0.5f) * 0x1p-32f);
    // -log(1 - u) = 2 artanh(u / (2 - u)). Near u = 0, 1 - u would lose the low bits of u.
    float u = (float(word) + 0.5f) * 0x1p-32f, s = u / (2 - u), t = s * s;
    return 2 * s * (1 + t * (1 / 3.0f + t * (1 / 5.0f + t * (1 / 7.0f + t / 9))));
}

/// Returns the Gumbel noise of a token: zinc.ops.noise.
DEVICE float gumbel(uint64_t seed, uint index, uint id)
{
    uint2 group = philox(seed, id / GROUP_IDS, index, GROUP_STREAM);
    float smallest = exponential(group.x) / GROUP_IDS;
    if ((group.y ^ id) % GROUP_IDS == 0) return -log(smallest);
    return -log(smallest + exponential(philox(seed, id, index, TOKEN_STREAM).x));
}
