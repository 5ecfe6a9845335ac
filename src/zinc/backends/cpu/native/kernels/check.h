// Checks of operands, shared by all kernels. An error names the kernel and what it expects. The code is in
// ../check.cpp, outside the SIMD levels: one copy that runs on any machine.
#pragma once

#include <stdexcept>
#include <string>

#include "../kernel.h"
#include "../operands.h"
#include "../q8row.h"

namespace zinc {

const char* format_name(RowFormat format);

// All checks throw std::invalid_argument.
void require(const Launch& launch, bool ok, const char* text);
void require(const Launch& launch, bool ok, const std::string& text);
void require_operands(const Launch& launch, size_t n_in, size_t n_out);

// Requires rows in the arena with `cols` columns (any number if negative) and, if given, in `format`.
void require_rows(const Launch& launch, const Operand& o, const char* name, int64_t cols = -1);
void require_rows(const Launch& launch, const Operand& o, const char* name, RowFormat format,
                  int64_t cols = -1);

// Requires a plain f32 vector (norm weight, bias) of `cols` values.
void require_vector(const Launch& launch, const Operand& o, const char* name, int64_t cols);

}  // namespace zinc
