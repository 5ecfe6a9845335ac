// embed: each thread decodes one unit of a token's row of the table.
//   BY_POSITION  the row is that of the token's position, not of its id

#include "arguments.h"

using Arguments = EmbedArguments;

#include "step.cuh"
#include "formats.cuh"

KERNEL(embed, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint token = group.y;
    if (token >= args.step->tokens) return;
    loadFormatTables(args.table, thread, THREADS);
    uint units = (args.cols + UNIT - 1) / UNIT, u = group.x * THREADS + thread;
    if (u >= units) return;
#if BY_POSITION
    uint row = positionOf(args.step, token);
#else
    uint row = idOf(args.step, token);
#endif
    float v[UNIT];
    decode(args.table, row * units + u, v);
    float* y = (float*)(args.y + uint64_t(token) * args.y_stride) + u * UNIT;
    uint n = min(UNIT, args.cols - u * UNIT);
    UNROLL for (uint i = 0; i < UNIT; i++)
        if (i < n) y[i] = v[i] * args.scale;
}
