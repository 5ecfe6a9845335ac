// Arithmetic on pairs of float16 numbers, two in a word, and their exact conversion from bytes.

#pragma once

#include "mma.cuh"

#ifdef ZINC_EMULATED

template <class F> DEVICE uint eachHalf(F f) { return packHalves(f(0), f(16)); }

DEVICE uint subtractHalves(uint a, uint b)
{
    return eachHalf([=](uint at) { return f16tof32(a >> at & 0xffff) - f16tof32(b >> at & 0xffff); });
}

DEVICE uint multiplyHalves(uint a, uint b)
{
    return eachHalf([=](uint at) { return f16tof32(a >> at & 0xffff) * f16tof32(b >> at & 0xffff); });
}

DEVICE uint addProductOfHalves(uint a, uint b, uint c)
{
    return eachHalf(
        [=](uint at)
        {
            return f16tof32(a >> at & 0xffff) * f16tof32(b >> at & 0xffff)
                + f16tof32(c >> at & 0xffff);
        });
}

#else

DEVICE uint subtractHalves(uint a, uint b)
{
    uint r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

DEVICE uint multiplyHalves(uint a, uint b)
{
    uint r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/// Returns a * b + c.
DEVICE uint addProductOfHalves(uint a, uint b, uint c)
{
    uint r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

#endif

DEVICE uint twice(float x) { return packHalves(x, x); }

/// Converts four bytes: `low` gets bytes 0 and 2, `high` bytes 1 and 3. 0x6400 | b is the float16
/// number 1024 + b. Bytes are first XORed with `flip`; the byte `zero` then becomes 0.
template <uint flip, uint zero> DEVICE void halvesOfBytes(uint bytes, uint& low, uint& high)
{
    const uint base = (0x6400u | flip) * 0x10001u, offset = (0x6400u + zero) * 0x10001u;
    low = subtractHalves((bytes & 0x00ff00ffu) ^ base, offset);
    high = subtractHalves((bytes >> 8 & 0x00ff00ffu) ^ base, offset);
}

/// Converts four signed bytes.
DEVICE void halvesOfSigned(uint bytes, uint& low, uint& high)
{
    halvesOfBytes<0x80, 0x80>(bytes, low, high);
}
