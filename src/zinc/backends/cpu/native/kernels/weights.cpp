#include "weights.h"

namespace zinc::ZINC_LEVEL {

constinit const WeightFormat* const kFormats[] = {
#define ZINC_FORMAT(name) &name##_format,
#include "formats.inc"
#undef ZINC_FORMAT
    nullptr,
};

}  // namespace zinc::ZINC_LEVEL
