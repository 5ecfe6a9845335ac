// The kernels of this level. CMake lists them in kernels.inc, from the lines of kernels/*.cpp that start with
// `const Kernel <op>_kernel`.
#pragma once

#include "../kernel.h"

namespace zinc::ZINC_LEVEL {

#define ZINC_KERNEL(name) extern const Kernel name##_kernel;
#include "kernels.inc"
#undef ZINC_KERNEL

}  // namespace zinc::ZINC_LEVEL
