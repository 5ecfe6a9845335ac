// Kernels that measure the peak rates of a device. KIND 0 reads `n` uint4s (read bandwidth), KIND 1
// computes `n` rounds of int8 dot products.
#include "arguments.h"

using Arguments = LimitsArguments;

#include "step.cuh"

#define READ 0
#define THREADS 256

DEVICE uint4 loadOrZero(ARGS, uint i) { return i < args.n ? ((const uint4*)args.data)[i] : 0u; }

KERNEL(limits, Arguments)
{
    const uint id = blockIdx.x * THREADS + threadIdx.x;
    uint result = 0;
#if KIND == READ
    for (uint i = id; i < args.n; i += 4 * args.threads)
    {
        uint4 a = loadOrZero(args, i), b = loadOrZero(args, i + args.threads);
        uint4 c = loadOrZero(args, i + 2 * args.threads);
        uint4 d = loadOrZero(args, i + 3 * args.threads);
        result ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
        result ^= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
#else
    int acc[8];
    UNROLL for (uint k = 0; k < 8; k++) acc[k] = int(id + k);
    for (uint i = 0; i < args.n; i++)
        UNROLL for (uint k = 0; k < 8; k++) acc[k] = __dp4a(acc[k], int(id + k), acc[k]);
    UNROLL for (uint k = 0; k < 8; k++) result += uint(acc[k]);
#endif
    if (result == 0x9E3779B9) ((uint*)args.out)[0] = result; // keeps the compiler from removing the loop
}
