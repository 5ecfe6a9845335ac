// The weight formats of this level. A format is a snippet in one of *_formats.cpp and a row of formats.inc.
// Levels that share the kernels of this one (avx512bf16, amx) have their own lists of formats.
#pragma once

#include "../kernel.h"
#include "../simd.h"

namespace zinc::ZINC_LEVEL {

#define ZINC_FORMAT(name) extern const WeightFormat name##_format;
#include "formats.inc"
#undef ZINC_FORMAT

extern const WeightFormat* const kFormats[];  // ends with null

#if defined(ZINC_HAS_BF16)
// Formats for processors with a bfloat16 dot product: BF16 in pairs comes first, before the plain BF16.
extern const WeightFormat bf16_pairs_format;
extern const WeightFormat* const kBf16Formats[];
#endif

#if defined(ZINC_HAS_AMX)
// Formats for processors with AMX. Tiles have the same layout, but products of many rows use the AMX
// registers.
#define ZINC_FORMAT(name) extern const WeightFormat name##_format_amx;
#include "formats.inc"
#undef ZINC_FORMAT

extern const WeightFormat* const kAmxFormats[];
#endif

}  // namespace zinc::ZINC_LEVEL
