// Decoders of weights. Each lane decodes one unit at a time: 32 elements of a quantised format, or
// 16 bytes of a float format.
//   FORMAT  the weight's type, by its number in GGUF files
//
// Each file in formats/ has the decoders of one family of formats, and is empty unless FORMAT is in
// the family. It defines
//   UNIT              elements of a unit
//   decode            reads a unit: floats of a float format, a `Unit` of a quantised one
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

#include "formats/blocks_of_32.cuh"
#include "formats/codebooks.cuh"
#include "formats/few_bits.cuh"
#include "formats/floats.cuh"
#include "formats/k_quants.cuh"
#include "formats/lookup.cuh"

#ifndef UNIT
#error no file in formats/ decodes this FORMAT
#endif
