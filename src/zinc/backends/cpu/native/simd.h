// Vectors of sixteen lanes: one zmm register on AVX-512, two ymm on AVX2, four q registers on NEON, plain
// arrays elsewhere. Kernels are written once over these types and compiled once for each level (ZINC_LEVEL),
// so all levels run the same arithmetic in the same order. fma is fused on every level whose machine has it.
//
// The build selects the implementation (ZINC_SIMD_*), not the compiler's flags: the scalar level stays scalar
// under -march=native. simd/scalar.h is the reference for the other levels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(ZINC_SIMD_AVX512)
#include "simd/avx512.h"
#elif defined(ZINC_SIMD_AVX2) || defined(ZINC_SIMD_AVXVNNI)
#include "simd/avx2.h"
#elif defined(ZINC_SIMD_NEON)
#include "simd/neon.h"
#else
#include "simd/scalar.h"
#endif

#if !defined(ZINC_HAS_SUMS16)
namespace zinc::ZINC_LEVEL {

// Stores the sum of each sixteen of 64 int8.
inline void sums16(const int8_t* x, int32_t* sums) {
    for (int i = 0; i < 4; ++i) {
        sums[i] = 0;
        for (int j = 0; j < 16; ++j) sums[i] += x[i * 16 + j];
    }
}

}  // namespace zinc::ZINC_LEVEL
#endif

#if !defined(ZINC_HAS_STORE_I8_SUMS)
namespace zinc::ZINC_LEVEL {

// Stores the 64 lanes of v as int8, saturated, and the sum of each sixteen.
inline void store_i8(const I32x16 (&v)[4], int8_t* q, int16_t* sums) {
    int32_t four[4];
    for (int i = 0; i < 4; ++i) v[i].store_i8(q + i * 16);
    sums16(q, four);
    for (int i = 0; i < 4; ++i) sums[i] = static_cast<int16_t>(four[i]);
}

}  // namespace zinc::ZINC_LEVEL
#endif

#if !defined(ZINC_HAS_HMAX16)
namespace zinc::ZINC_LEVEL {

// Returns the largest lane of each v[i] in lane i.
inline I32x16 hmax(const I32x16 (&v)[16]) {
    int32_t top[16];
    for (int i = 0; i < 16; ++i) top[i] = hmax(v[i]);
    return I32x16::load(top);
}

}  // namespace zinc::ZINC_LEVEL
#endif

#if !defined(ZINC_HAS_TRANSPOSE)
namespace zinc::ZINC_LEVEL {

// Transposes 16 x 16 floats: to[j][i] = from[i][j]. Rows are from_step and to_step floats apart.
inline void transpose16(const float* from, int64_t from_step, float* to, int64_t to_step) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[j * to_step + i] = from[i * from_step + j];
}

}  // namespace zinc::ZINC_LEVEL
#endif
