// The SIMD levels that were built, and which of them this machine runs.
#pragma once

#include <string_view>
#include <vector>

#include "kernel.h"

namespace zinc {

// Runnable here, best first; the scalar level always ends the list.
std::vector<const Level*> runnable_levels();

// "auto" is the best one. Throws std::invalid_argument when the machine or the build lacks it.
const Level& find_level(std::string_view name);

}  // namespace zinc
