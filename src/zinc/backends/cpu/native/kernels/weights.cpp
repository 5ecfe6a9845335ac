#include "weights.h"

namespace zinc::ZINC_LEVEL {

constinit const WeightFormat* const kFormats[] = {
    &f32_format,  &f16_format,    &bf16_format,   &q4_0_format,  &q4_1_format, &q5_0_format,
    &q5_1_format, &q8_0_format,   &q2_k_format,   &q3_k_format,  &q4_k_format, &q5_k_format,
    &q6_k_format, &iq4_nl_format, &iq4_xs_format, &mxfp4_format, nullptr,
};

}  // namespace zinc::ZINC_LEVEL
