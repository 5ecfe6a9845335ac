// Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: a unit is a block, with its own scale.

#if FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q8_0

#define HALVES 0
#define MINIMUMS (FORMAT != Q8_0)
#include "formats/unit.cuh"

DEVICE void loadFormatTables(Matrix w, uint thread, uint threads) {}

#define PACKED_UNITS 1

/// The bits of a unit as they lie in memory.
struct PackedUnit
{
    uint4 q;
#if FORMAT == Q8_0
    uint4 second;
#elif FORMAT == Q5_0 || FORMAT == Q5_1
    uint h;
#endif
    uint scale;
};

DEVICE PackedUnit loadUnit(Matrix w, uint unit)
{
    PackedUnit p;
#if FORMAT == Q8_0
    p.q = loadWeights16((uint4*)w.q + 2 * unit);
    p.second = loadWeights16((uint4*)w.q + 2 * unit + 1);
#else
    p.q = loadWeights16((uint4*)w.q + unit);
#endif
#if FORMAT == Q5_0 || FORMAT == Q5_1
    p.h = loadWeights4(w.h + unit);
#endif
#if FORMAT == Q4_1 || FORMAT == Q5_1
    p.scale = loadWeights4((uint*)w.s + unit);
#else
    p.scale = loadWeights2(w.s + unit);
#endif
    return p;
}

DEVICE Unit decodeUnit(const PackedUnit& p, uint unit)
{
    Unit r;
    r.m = 0;
#if FORMAT == Q8_0
    UNROLL for (int i = 0; i < 4; i++)
    {
        r.q[i] = p.q[i];
        r.q[i + 4] = p.second[i];
    }
#else
    splitNibbles(p.q, r);
#endif

#if FORMAT == Q4_1 || FORMAT == Q5_1
    float2 dm = halves(p.scale);
    r.d = dm.x;
    r.m = -dm.y;
#else
    r.d = f16tof32(p.scale);
#endif
#if FORMAT == Q4_0
    r.m = 8 * r.d;
#elif FORMAT == Q5_0
    r.m = 16 * r.d;
#endif

#if FORMAT == Q5_0 || FORMAT == Q5_1
    addOneBit(p.h, 4, r);
#endif
    return r;
}

DEVICE Unit decode(Matrix w, uint unit) { return decodeUnit(loadUnit(w, unit), unit); }

#endif
