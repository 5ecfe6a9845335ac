// Decoders of weights. Each lane decodes one unit at a time: 32 elements of a quantised format, or
// 16 bytes of a float format.
//   FORMAT  the weight's type, by its number in GGUF files
//
// A file in formats/ has the decoders of one family. It defines
//   UNIT              elements of a unit
//   decode            reads a unit: floats of a float format, a `Unit` of a quantised one
//   loadFormatTables  loads lookup tables into shared memory; all threads call it first
//   HALVES            1: the halves of a unit have scales (and minimums) of their own
//   MINIMUMS          1: elements have a minimum that is subtracted
//
// zinc.gpu.packing lays weights out as the streams of `Matrix`.

#pragma once

#include "prelude.cuh"

#define F32 0
#define F16 1
#define Q4_0 2
#define Q4_1 3
#define Q5_0 6
#define Q5_1 7
#define Q8_0 8
#define Q2_K 10
#define Q3_K 11
#define Q4_K 12
#define Q5_K 13
#define Q6_K 14
#define IQ2_XXS 16
#define IQ2_XS 17
#define IQ3_XXS 18
#define IQ1_S 19
#define IQ4_NL 20
#define IQ3_S 21
#define IQ2_S 22
#define IQ4_XS 23
#define IQ1_M 29
#define BF16 30
#define TQ1_0 34
#define TQ2_0 35
#define MXFP4 39
#define NVFP4 40
#define Q1_0 41
#define Q2_0 42

#define IQ1 (FORMAT == IQ1_S || FORMAT == IQ1_M)
#define IQ2 (FORMAT == IQ2_XXS || FORMAT == IQ2_XS || FORMAT == IQ2_S)
#define IQ3 (FORMAT == IQ3_XXS || FORMAT == IQ3_S)
#define TERNARY (FORMAT == TQ1_0 || FORMAT == TQ2_0)

/// Returns the streams of a matrix of the shape of `w` that lies `bytes` after it, modulo 2^64.
DEVICE Matrix shifted(const Matrix& w, uint64_t bytes)
{
    Matrix r;
    r.q = (uint32_t*)(uint64_t(w.q) + bytes);
    r.h = (uint32_t*)(uint64_t(w.h) + bytes);
    r.s = (uint16_t*)(uint64_t(w.s) + bytes);
    return r;
}

#if FORMAT == F32 || FORMAT == F16 || FORMAT == BF16
#include "formats/floats.cuh"
#elif FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q8_0
#include "formats/blocks_of_32.cuh"
#elif FORMAT == Q1_0 || FORMAT == Q2_0 || TERNARY
#include "formats/few_bits.cuh"
#elif FORMAT == IQ4_NL || FORMAT == IQ4_XS || FORMAT == MXFP4 || FORMAT == NVFP4
#include "formats/lookup.cuh"
#elif IQ1 || IQ2 || IQ3
#include "formats/codebooks.cuh"
#else
#include "formats/k_quants.cuh"
#endif
