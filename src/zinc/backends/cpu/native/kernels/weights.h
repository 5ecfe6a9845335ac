// The weight formats of this level; a format is a snippet in one of *_formats.cpp and a row of formats.inc.
// Levels that share its kernels have formats of their own.
#pragma once

#include "../kernel.h"
#include "../simd.h"

namespace zinc::ZINC_LEVEL {

#define ZINC_FORMAT(name) extern const WeightFormat name##_format;
#include "formats.inc"
#undef ZINC_FORMAT

extern const WeightFormat* const kFormats[];  // ends with null

#if defined(ZINC_HAS_BF16)
// For a processor with a dot product of bfloat16: BF16 in pairs, before all others.
extern const WeightFormat bf16_pairs_format;
extern const WeightFormat* const kBf16Formats[];
#endif

#if defined(ZINC_HAS_AMX)
// The same for a processor with AMX, where tiles lie as they do here but many rows meet them in other
// registers.
#define ZINC_FORMAT(name) extern const WeightFormat name##_format_amx;
#include "formats.inc"
#undef ZINC_FORMAT

extern const WeightFormat* const kAmxFormats[];
#endif

}  // namespace zinc::ZINC_LEVEL
