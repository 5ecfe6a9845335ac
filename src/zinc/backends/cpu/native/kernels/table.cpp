// The tables of this level: its kernels (kernels.inc), weight formats and peak rate.
#include "table.h"

#include <iterator>

#include "../kernel.h"
#include "amx.h"
#include "gemm.h"
#include "weights.h"

#define ZINC_TEXT(x) #x
#define ZINC_NAME(x) ZINC_TEXT(x)

namespace zinc::ZINC_LEVEL {
namespace {

const Kernel* const kKernels[] = {
#define ZINC_KERNEL(name) &name##_kernel,
#include "kernels.inc"
#undef ZINC_KERNEL
};

// Runs the inner loop of the matrix product on a register block of four-bit weights and rows, without scales.
// Rows differ from round to round, so that the compiler cannot move a product out of the loop.
int64_t int8_peak(int64_t iterations) {
    constexpr int kGroups = 8;
    uint8_t weights[kTileBlock][64];
    int8_t rows[2][kTokenBlock][kGroups * 4];
    for (int i = 0; i < kTileBlock * 64; ++i) weights[i / 64][i % 64] = static_cast<uint8_t>(i % 15);
    for (int i = 0; i < kTokenBlock * kGroups * 4; ++i)
        for (int round = 0; round < 2; ++round)
            rows[round][i / (kGroups * 4)][i % (kGroups * 4)] = static_cast<int8_t>(i % 63 - round);
    U8x64 w[kTileBlock];
    unroll<kTileBlock>([&](auto r) { w[r] = U8x64::load(weights[r]); });
    Dot4<4> dot[kTileBlock][kTokenBlock];
    I32x16 total = I32x16::zero();
    const auto read = [&] {
        unroll<kTileBlock>([&](auto r) {
            unroll<kTokenBlock>([&](auto t) { total = total + dot[r][t].total(), dot[r][t] = {}; });
        });
    };
    for (int64_t i = 0; i < iterations; ++i) {
        unroll<kGroups>([&](auto g) {
            unroll<kTokenBlock>([&](auto t) {
                const int32_t four = load32(rows[i % 2][t] + 4 * g);
                unroll<kTileBlock>([&](auto r) { dot[r][t].add(w[r], four); });
            });
        });
        if constexpr (Dot4<4>::kRun <= kGroups) read();
    }
    read();
    volatile int32_t sink = sum(total);
    static_cast<void>(sink);
    return iterations * kGroups * kTileBlock * kTokenBlock * 64;
}

#if defined(ZINC_HAS_AMX)

// Runs products of registers only.
int64_t int8_peak_amx(int64_t iterations) {
    const tmul::Registers registers(tmul::kMaxRows, 64);
    unroll<4>([](auto sums) { tmul::zero<sums>(); });
    unroll<2>([](auto i) { tmul::zero<tmul::kX + i>(), tmul::zero<tmul::kWeights + i>(); });
    for (int64_t i = 0; i < iterations; ++i)
        unroll<4>(
            [](auto sums) { tmul::multiply<sums, tmul::kX + sums / 2, tmul::kWeights + sums % 2, true>(); });
    return iterations * 4 * tmul::kMaxRows * 16 * 64;
}

#endif

}  // namespace

extern const Level level;
constinit const Level level{ZINC_NAME(ZINC_LEVEL), kKernels, std::size(kKernels), kFormats, int8_peak};

}  // namespace zinc::ZINC_LEVEL

#if defined(ZINC_HAS_BF16)
namespace zinc::avx512bf16 {

// A level that differs from this one in the format BF16 only.
extern const Level level;
constinit const Level level{"avx512bf16", ZINC_LEVEL::kKernels, std::size(ZINC_LEVEL::kKernels),
                            ZINC_LEVEL::kBf16Formats, ZINC_LEVEL::int8_peak};

}  // namespace zinc::avx512bf16
#endif

#if defined(ZINC_HAS_AMX)
namespace zinc::amx {

// A level that differs from avx512bf16 in the products of many rows.
extern const Level level;
constinit const Level level{"amx", ZINC_LEVEL::kKernels, std::size(ZINC_LEVEL::kKernels),
                            ZINC_LEVEL::kAmxFormats, ZINC_LEVEL::int8_peak_amx};

}  // namespace zinc::amx
#endif
