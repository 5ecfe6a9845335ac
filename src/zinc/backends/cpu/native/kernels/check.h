// Checks of operands that kernels share; a failure names the kernel and what it wants. The code is in
// ../check.cpp, outside the SIMD levels: one copy, compiled for any machine.
#pragma once

#include <stdexcept>
#include <string>

#include "../kernel.h"
#include "../q8row.h"

namespace zinc {

const char* act_name(Act act);

// All of these throw std::invalid_argument.
void require(const Launch& launch, bool ok, const char* text);
void require(const Launch& launch, bool ok, const std::string& text);
void require_operands(const Launch& launch, size_t n_in, size_t n_out);

// Rows in the arena, of this many columns (any when negative) and in this format (any when not given).
void require_rows(const Launch& launch, const Operand& o, const char* name, int64_t cols = -1);
void require_rows(const Launch& launch, const Operand& o, const char* name, Act act, int64_t cols = -1);

// A plain f32 vector (norm weight, bias) of `cols` values.
void require_vector(const Launch& launch, const Operand& o, const char* name, int64_t cols);

}  // namespace zinc
