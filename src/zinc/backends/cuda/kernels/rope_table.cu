// rope_table: cosines, then sines of position * frequency, times a scale. Each thread computes one
// angle. The scale may grow with the logarithm of the position, or of the position plus OFFSET. Angles
// grow with the context, so they are kept as a sum of two floats and reduced in three steps (Cody and
// Waite). The device's own sine is exact to 2^-11 only.

#ifndef OFFSET
#define OFFSET 0
#endif
#include "arguments.h"

using Arguments = RopeTableArguments;

#include "step.cuh"

/// Returns sin and cos of a + b, with the polynomials of Cephes on [-pi/4, pi/4].
DEVICE float2 sineAndCosine(float a, float b)
{
    float turns = round(a * 0.6366197723675814f);
    float x = mad(turns, -1.5703125f, a);
    x = mad(turns, -4.837512969970703e-4f, x);
    x = mad(turns, -7.549789948768648e-8f, x) + b;
    float z = x * x;
    float s = x + x * z * (-1.6666654611e-1f + z * (8.3321608736e-3f + z * -1.9515295891e-4f));
    float c = 1.0f - 0.5f * z
        + z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
    int quadrant = int(turns) & 3;
    float2 r = (quadrant & 1) != 0 ? float2(c, s) : float2(s, c);
    if ((quadrant & 2) != 0) r.x = -r.x;
    if (((quadrant + 1) & 2) != 0) r.y = -r.y;
    return r;
}

KERNEL(rope_table, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint i = group.x * THREADS + thread;
    if (group.y >= args.step->tokens || i >= args.n) return;
    float position = float(positionOf(args.step, group.y)), frequency = args.frequencies[i];
    float angle = position * frequency;
    float grown = logf(1.0f + float((positionOf(args.step, group.y) + OFFSET) / args.period));
    float scale = args.scale * (1.0f + args.log_scale * grown);
    float2 r = scale * sineAndCosine(angle, mad(position, frequency, -angle));
    float* y = (float*)(args.y + uint64_t(group.y) * args.y_stride);
    y[i] = r.y;
    y[args.n + i] = r.x;
}
