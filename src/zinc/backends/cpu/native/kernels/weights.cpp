#include "weights.h"

namespace zinc::ZINC_LEVEL {

constinit const Formats* const kFormats[] = {&float_formats, &block_formats, &k_formats, &iq_formats,
                                             nullptr};

#if defined(ZINC_HAS_BF16)
constinit const Formats* const kBf16Formats[] = {&float_formats_bf16, &block_formats, &k_formats, &iq_formats,
                                                 nullptr};
#endif

#if defined(ZINC_HAS_AMX)
constinit const Formats* const kAmxFormats[] = {&float_formats_bf16, &block_formats_amx, &k_formats_amx,
                                                &iq_formats_amx, nullptr};
#endif

}  // namespace zinc::ZINC_LEVEL
