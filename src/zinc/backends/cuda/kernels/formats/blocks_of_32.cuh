// Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: a unit is a block, with its own scale.

#if FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q8_0

#define HALVES 0
#define MINIMUMS (FORMAT != Q8_0)
#include "formats/unit.cuh"

DEVICE void loadFormatTables(Matrix w, uint thread, uint threads) {}

DEVICE Unit decode(Matrix w, uint unit)
{
    Unit r;
    r.m = 0;
#if FORMAT == Q8_0
    uint4 a = loadAligned<16>((uint4*)w.q + 2 * unit);
    uint4 b = loadAligned<16>((uint4*)w.q + 2 * unit + 1);
    UNROLL for (int i = 0; i < 4; i++)
    {
        r.q[i] = a[i];
        r.q[i + 4] = b[i];
    }
#else
    splitNibbles(loadAligned<16>((uint4*)w.q + unit), r);
#endif

#if FORMAT == Q4_1 || FORMAT == Q5_1
    float2 dm = halves(((uint*)w.s)[unit]);
    r.d = dm.x;
    r.m = -dm.y;
#else
    r.d = halfAt(w.s, unit);
#endif
#if FORMAT == Q4_0
    r.m = 8 * r.d;
#elif FORMAT == Q5_0
    r.m = 16 * r.d;
#endif

#if FORMAT == Q5_0 || FORMAT == Q5_1
    addOneBit(w.h[unit], 4, r);
#endif
    return r;
}

#endif
