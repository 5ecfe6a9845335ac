#include "levels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace zinc {

#define ZINC_BUILT_LEVEL(name) \
    namespace name {           \
    extern const Level level;  \
    }
#include "built_levels.inc"  // made by CMakeLists.txt: one row a level, best first
#undef ZINC_BUILT_LEVEL

namespace {

// The builtins ask the processor and the operating system (XCR0) both.
bool runs(std::string_view name) {
    if (name == "scalar") return true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    if (name == "avx512bf16") return avx512 && __builtin_cpu_supports("avx512bf16");
    if (name == "avx512") return avx512;
    // F16C has no builtin in older compilers; every processor with AVX2 and FMA has it.
    if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined(__aarch64__) && defined(__linux__)
    if (name == "neon") return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__)
    if (name == "neon") return true;
#endif
    return false;
}

}  // namespace

std::vector<const Level*> runnable_levels() {
    std::vector<const Level*> levels;
#define ZINC_BUILT_LEVEL(name) \
    if (runs(#name)) levels.push_back(&name::level);
#include "built_levels.inc"
#undef ZINC_BUILT_LEVEL
    return levels;
}

const Level& find_level(std::string_view name) {
    std::string known;
    for (const Level* level : runnable_levels()) {
        if (name == "auto" || name == level->name) return *level;
        known += (known.empty() ? "" : ", ") + std::string(level->name);
    }
    throw std::invalid_argument("no SIMD level '" + std::string(name) + "' on this machine; there is " +
                                known);
}

}  // namespace zinc
