// The weight formats of this level, a list for each of *_formats.cpp. Levels that share the kernels of this
// one (avx512bf16, amx) have their own lists.
#pragma once

#include "../kernel.h"
#include "../simd.h"

namespace zinc::ZINC_LEVEL {

extern const Formats float_formats, block_formats, k_formats, iq_formats;
extern const Formats* const kFormats[];  // ends with null

#if defined(ZINC_HAS_BF16)
// For processors with a bfloat16 dot product: BF16 in pairs.
extern const Formats float_formats_bf16;
extern const Formats* const kBf16Formats[];
#endif

#if defined(ZINC_HAS_AMX)
// For processors with AMX. Tiles have the same layout, but products of many rows use the AMX registers.
extern const Formats block_formats_amx, k_formats_amx, iq_formats_amx;
extern const Formats* const kAmxFormats[];
#endif

// Whether `format` is an entry of one of the lists.
inline bool contains(const Formats* const* lists, const WeightFormat* format) {
    for (; *lists; ++lists)
        for (const WeightFormat& each : **lists)
            if (&each == format) return true;
    return false;
}

}  // namespace zinc::ZINC_LEVEL
