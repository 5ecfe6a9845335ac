// Unrolled loops with a constant index, so that arrays indexed by it are kept in registers.
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

// Placed before a loop over vectors. The compiler unrolls the loop early enough to keep the vectors in
// registers and compiles one body, not one for each index. The scalar level has no vector registers, so it
// does not unroll.
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
