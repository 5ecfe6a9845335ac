// Loops whose index is a constant in every iteration, so that arrays indexed by it live in registers.
#pragma once

#include <type_traits>
#include <utility>

namespace zinc {

template <int kCount, class F>
[[gnu::always_inline]] inline void unroll(F&& f) {
    [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
        (f(std::integral_constant<int, i>()), ...);
    }(std::make_integer_sequence<int, kCount>());
}

// Before a loop over vectors: the compiler unrolls it early, so that they live in registers all the same, and
// one body is compiled instead of one for each index. The scalar level has no registers that they could live
// in.
#if defined(ZINC_SIMD_SCALAR)
#define ZINC_UNROLL
#else
#define ZINC_UNROLL _Pragma("GCC unroll 16")
#endif

template <int kCount, class F>
[[gnu::always_inline]] inline void repeat(F&& f) {
    ZINC_UNROLL
    for (int i = 0; i < kCount; ++i) f(i);
}

}  // namespace zinc
