// GEMV: linear, linear_glu and head_linear for few rows of x. group.z is the plane (head).

#include "linear_rows.cuh"
#include "tile.cuh"

KERNEL(matvec, Arguments)
{
    const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    const uint thread = threadIdx.x;
    uint n = rowCount(args), first_x = group.y * BATCH;
    if (first_x >= n) return;
    loadFormatTables(args.w, thread, THREADS);

    uint units = (COLUMNS + UNIT - 1) / UNIT, plane = group.z, first = group.x * TILE;
    uint8_t* x[BATCH];
    UNROLL for (uint i = 0; i < BATCH; i++) x[i] = rowAt(args, min(first_x + i, n - 1), plane);
    accumulate(
        args.w, shifted(args.w, args.up), plane * args.rows * units, first, args.rows, COLUMNS, x,
        thread);
    storeTile(args, first, args.rows, plane, first_x, n, thread);
}
