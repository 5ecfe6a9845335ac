// F32, F16 and BF16: units of 16 bytes.

#if FORMAT == F32 || FORMAT == F16 || FORMAT == BF16

#if FORMAT == F32
#define UNIT 4
#else
#define UNIT 8
#endif

DEVICE void loadFormatTables(Matrix w, uint thread, uint threads) {}

DEVICE void decode(Matrix w, uint unit, float (&v)[UNIT])
{
    uint4 x = loadAligned<16>((uint4*)w.q + unit);
    UNROLL for (int i = 0; i < 4; i++)
    {
#if FORMAT == F32
        v[i] = asfloat(x[i]);
#elif FORMAT == F16
        v[2 * i] = f16tof32(x[i] & 0xffffu);
        v[2 * i + 1] = f16tof32(x[i] >> 16);
#else
        v[2 * i] = asfloat(x[i] << 16);
        v[2 * i + 1] = asfloat(x[i] & 0xffff0000u);
#endif
    }
}

#endif
