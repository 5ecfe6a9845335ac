#include "levels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace zinc {

#define ZINC_BUILT_LEVEL(name) \
    namespace name {           \
    extern const Level level;  \
    }
#include "built_levels.inc"  // made by CMakeLists.txt: one row a level, best first
#undef ZINC_BUILT_LEVEL

namespace {

#if defined(__x86_64__) && defined(__linux__)
// Whether the processor multiplies tiles of 8-bit integers, and Linux lets this process: it has to be asked,
// for all threads that there are or will be.
bool has_amx() {
    static const bool granted = [] {
        constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;  // cpuid 7, edx
        constexpr int kRequestPermission = 0x1023, kTileData = 18;
        unsigned a, b, c, d;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTile) && (d & kInt8) &&
               syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    }();
    return granted;
}
#endif

// The builtins ask the processor and the operating system (XCR0) both.
bool runs(std::string_view name) {
    if (name == "scalar") return true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
#if defined(__linux__)
    if (name == "amx") return avx512 && __builtin_cpu_supports("avx512bf16") && has_amx();
#endif
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
