// Q1_0, Q2_0, TQ1_0 and TQ2_0: one or two bits an element. All but Q1_0 store the element plus 1.

#define TERNARY (FORMAT == TQ1_0 || FORMAT == TQ2_0)

#if FORMAT == Q1_0 || FORMAT == Q2_0 || TERNARY

#define HALVES 0
#define MINIMUMS 1
#include "formats/unit.cuh"

DEVICE void loadFormatTables(Matrix w, uint thread, uint threads) {}

DEVICE Unit decode(Matrix w, uint unit)
{
    Unit r;
    r.m = 0;
    clear(r);
#if FORMAT == Q1_0
    addOneBit(((uint*)w.q)[unit], 0, r);
    float d = halfAt(w.s, unit / 4);
    r.d = 2 * d;
    r.m = d;
#else
    addTwoBits(loadAligned<8>((uint2*)w.q + unit), 0, r);
    r.d = halfAt(w.s, unit / (TERNARY ? 8 : 2));
    r.m = r.d;
#endif
    return r;
}

#endif
