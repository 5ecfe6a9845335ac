// The kernels of this level, by the rows of table.inc: an op is one .cpp that defines `name_kernel` and one
// row there.
#pragma once

#include "../kernel.h"

namespace zinc::ZINC_LEVEL {

#define ZINC_KERNEL(name) extern const Kernel name##_kernel;
#include "table.inc"
#undef ZINC_KERNEL

}  // namespace zinc::ZINC_LEVEL
