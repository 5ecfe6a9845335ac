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

}  // namespace zinc
