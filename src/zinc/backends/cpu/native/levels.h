// The SIMD levels that were built and that this machine can run.
#pragma once

#include <string_view>
#include <vector>

#include "kernel.h"

namespace zinc {

// The levels of this build, best first.
std::vector<const Level*> built_levels();

// The levels of this build that this machine runs, best first. Empty if the build has no scalar level and the
// others need a newer processor.
std::vector<const Level*> runnable_levels();

// The level `name`; "auto" is the best one. Throws std::invalid_argument if the machine or the build lacks
// it.
const Level& find_level(std::string_view name);

}  // namespace zinc
