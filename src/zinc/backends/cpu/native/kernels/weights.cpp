#include "weights.h"

namespace zinc::ZINC_LEVEL {

constinit const WeightFormat* const kFormats[] = {
#define ZINC_FORMAT(name) &name##_format,
#include "formats.inc"
#undef ZINC_FORMAT
    nullptr,
};

#if defined(ZINC_HAS_BF16)
constinit const WeightFormat* const kBf16Formats[] = {
    &bf16_pairs_format,
#define ZINC_FORMAT(name) &name##_format,
#include "formats.inc"
#undef ZINC_FORMAT
    nullptr,
};
#endif

#if defined(ZINC_HAS_AMX)
constinit const WeightFormat* const kAmxFormats[] = {
#define ZINC_FORMAT(name) &name##_format_amx,
#include "formats.inc"
#undef ZINC_FORMAT
    nullptr,
};
#endif

}  // namespace zinc::ZINC_LEVEL
