// Matrix products of 8-bit integers in the tile registers of AMX (Intel Sapphire Rapids and later).
//
// A register has sixteen rows of 64 bytes. One instruction adds the products of up to sixteen rows of x and
// sixteen rows of weights over 64 k, in int32. It needs the weights in the layout of planes.h, one vector for
// four k of sixteen rows, so sixteen such vectors are loaded as one register. Integer sums are exact in any
// order, so the results equal those of the vector code bit by bit.
//
// Registers 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 weights.
#pragma once

#include <algorithm>

#include "gemm.h"

#if defined(ZINC_HAS_AMX)

namespace zinc::ZINC_LEVEL::tmul {

inline constexpr int kMaxRows = 16;
inline constexpr int kX = 4, kWeights = 6;

// Division of n rows into the smallest number of groups, all of the same size. The last group may repeat rows
// of the group before it.
struct RowGroups {
    int n, count, rows;
    explicit RowGroups(int n_rows)
        : n(n_rows), count((n + kMaxRows - 1) / kMaxRows), rows((n + count - 1) / count) {}
    int start(int group) const { return std::min(group * rows, n - rows); }
    int repeated(int group) const { return group * rows - start(group); }
};

// Configures the tile registers for `rows` rows of x and `bytes` bytes of k a step, and releases them on
// destruction: the system saves registers in use at every context switch.
class Registers {
public:
    Registers(int rows, int bytes) {
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        for (int i = 0; i < 8; ++i) {
            shapes.bytes[i] = static_cast<uint16_t>(i == kX || i == kX + 1 ? bytes : 64);
            shapes.rows[i] = static_cast<uint8_t>(i < kWeights ? rows : bytes / 4);
        }
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~Registers() { asm volatile("tilerelease"); }
    Registers(const Registers&) = delete;
};

template <int kRegister>
[[gnu::always_inline]] inline void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kRegister));
}
template <int kRegister>
[[gnu::always_inline]] inline void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kRegister) : "memory");
}
template <int kRegister>
[[gnu::always_inline]] inline void store(void* to) {
    asm volatile("tilestored %%tmm%c2, (%0,%1)" ::"r"(to), "r"(int64_t{64}), "i"(kRegister) : "memory");
}
// sums += x . weights, with signed x and signed or unsigned weights.
template <int kSums, int kX, int kWeights, bool kSigned>
[[gnu::always_inline]] inline void multiply() {
    if constexpr (kSigned) {
        asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeights));
    } else {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeights));
    }
}

// Returns `format` with an AMX product. Its panels have fewer rows: tiles are processed so fast that the rows
// of x must stay in the cache too.
constexpr WeightFormat with(WeightFormat format, void (*matmul)(const TileMatmul&)) {
    format.matmul = matmul;
    format.panel_rows = 256;
    return format;
}

// The contents of a register of sums.
struct alignas(64) Sums {
    int32_t row[kMaxRows][16];
};

}  // namespace zinc::ZINC_LEVEL::tmul

#endif
