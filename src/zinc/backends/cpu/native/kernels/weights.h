// The weight formats of this level; a format is a snippet in one of *_formats.cpp and a row of formats.inc.
#pragma once

#include "../kernel.h"

namespace zinc::ZINC_LEVEL {

#define ZINC_FORMAT(name) extern const WeightFormat name##_format;
#include "formats.inc"
#undef ZINC_FORMAT

extern const WeightFormat* const kFormats[];  // ends with null

}  // namespace zinc::ZINC_LEVEL
