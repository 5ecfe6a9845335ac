// This level's tables: its kernels by table.inc, its weight formats, its peak.
#include "table.h"

#include <iterator>

#include "../kernel.h"
#include "../simd.h"
#include "weights.h"

#define ZINC_TEXT(x) #x
#define ZINC_NAME(x) ZINC_TEXT(x)

namespace zinc::ZINC_LEVEL {
namespace {

const Kernel* const kKernels[] = {
#define ZINC_KERNEL(name) &name##_kernel,
#include "table.inc"
#undef ZINC_KERNEL
};

// Enough chains to hide the latency of the dot product, few enough to stay in registers.
constexpr int kChains = kVectorRegisters / 2;

int64_t int8_peak(int64_t iterations) {
    uint8_t bytes[64];
    for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i % 16);
    Dot4<4> chains[kChains];
    const U8x64 w = U8x64::load(bytes);
    I32x16 total = I32x16::zero();
    for (int64_t i = 0; i < iterations; ++i) {
        for (int run = 0; run < 8; ++run) {
            const int32_t x = 0x01010101 + run;
            for (auto& chain : chains) chain.add(w, x);
        }
        if constexpr (Dot4<4>::kRun <= 8) {
            for (auto& chain : chains) total = total + chain.total(), chain = {};
        }
    }
    for (auto& chain : chains) total = total + chain.total();
    volatile int32_t sink = sum(total);
    static_cast<void>(sink);
    return iterations * 8 * kChains * 64;
}

}  // namespace

extern const Level level;
constinit const Level level{ZINC_NAME(ZINC_LEVEL), kKernels, std::size(kKernels), kFormats, int8_peak};

}  // namespace zinc::ZINC_LEVEL
