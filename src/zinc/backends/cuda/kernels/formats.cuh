// Decoders of weights. Each lane decodes one unit at a time: 32 elements of a quantised format, or
// 16 bytes of a float format.
//   FORMAT  the weight's type, by its number in GGUF files
//
// Each file in formats/ has the decoders of one family of formats, and is empty unless FORMAT is in
// the family. It defines
//   UNIT              elements of a unit
//   decode            reads a unit: floats of a float format, a `Unit` of a quantised one
//   PACKED_UNITS      1: decode is loadUnit, which returns a `PackedUnit`, and then decodeUnit, so
//                     that kernels prefetch units in few registers
//   loadFormatTables  loads lookup tables into shared memory; all threads call it first
//   HALVES            1: the halves of a unit have scales (and minimums) of their own
//   MINIMUMS          1: elements have a minimum that is subtracted
//
// zinc.gpu.packing lays weights out as the streams of `Matrix`.

#pragma once

#include "arguments/ggml_type.h"
#include "prelude.cuh"

/// Returns the streams of a matrix of the shape of `w` that lies `bytes` after it, modulo 2^64.
DEVICE Matrix shifted(const Matrix& w, uint64_t bytes)
{
    Matrix r;
    r.q = (uint32_t*)(uint64_t(w.q) + bytes);
    r.h = (uint32_t*)(uint64_t(w.h) + bytes);
    r.s = (uint16_t*)(uint64_t(w.s) + bytes);
    return r;
}

// Loads of weights. They stay where the source has them, before waitForInputs too: compilers may
// move plain loads of constant memory past the wait. L2 fetches whole lines of 128 bytes, because a
// warp loads the other half of a line soon (column_groups.cuh).
#if defined(ZINC_EMULATED)
DEVICE uint4 loadWeights16(const uint4* p) { return *p; }
DEVICE uint2 loadWeights8(const uint2* p) { return *p; }
DEVICE uint loadWeights4(const uint* p) { return *p; }
DEVICE uint loadWeights2(const uint16_t* p) { return *p; }
#else
DEVICE uint4 loadWeights16(const uint4* p)
{
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
    return x;
}

DEVICE uint2 loadWeights8(const uint2* p)
{
    uint2 x;
    asm volatile("ld.relaxed.gpu.global.L2::128B.v2.u32 {%0, %1}, [%2];"
        : "=r"(x.x), "=r"(x.y) : "l"(p));
    return x;
}

DEVICE uint loadWeights4(const uint* p)
{
    uint x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}

DEVICE uint loadWeights2(const uint16_t* p)
{
    uint16_t x;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(p));
    return x;
}
#endif

#include "formats/blocks_of_32.cuh"
#include "formats/codebooks.cuh"
#include "formats/few_bits.cuh"
#include "formats/floats.cuh"
#include "formats/k_quants.cuh"
#include "formats/lookup.cuh"

#ifndef PACKED_UNITS
#define PACKED_UNITS 0
#endif

#ifndef UNIT
#error no file in formats/ decodes this FORMAT
#endif
