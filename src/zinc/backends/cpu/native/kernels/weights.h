// The weight formats of this level; a format is a snippet in one of *_formats.cpp and a row here and in
// weights.cpp.
#pragma once

#include "../kernel.h"

namespace zinc::ZINC_LEVEL {

extern const WeightFormat f32_format, f16_format, bf16_format;
extern const WeightFormat q4_0_format, q4_1_format, q5_0_format, q5_1_format, q8_0_format;
extern const WeightFormat q2_k_format, q3_k_format, q4_k_format, q5_k_format, q6_k_format;

extern const WeightFormat iq4_nl_format, iq4_xs_format, mxfp4_format;

extern const WeightFormat* const kFormats[];  // ends with null

}  // namespace zinc::ZINC_LEVEL
