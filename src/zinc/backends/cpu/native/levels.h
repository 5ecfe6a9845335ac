// The SIMD levels that were built and that this machine can run.
#pragma once

#include <string_view>
#include <vector>

#include "kernel.h"

namespace zinc {

// The levels that run on this machine, best first. The last is always the scalar level.
std::vector<const Level*> runnable_levels();

// The level `name`; "auto" is the best one. Throws std::invalid_argument if the machine or the build lacks
// it.
const Level& find_level(std::string_view name);

}  // namespace zinc
