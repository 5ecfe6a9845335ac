// The kernels of this level, one for each row of table.inc. Each op has a .cpp that defines `<name>_kernel`
// and a row there.
#pragma once

#include "../kernel.h"

namespace zinc::ZINC_LEVEL {

#define ZINC_KERNEL(name) extern const Kernel name##_kernel;
#include "table.inc"
#undef ZINC_KERNEL

}  // namespace zinc::ZINC_LEVEL
