// Turns rows as they lie in a GGUF file into the tiles that the kernels read, and back.
#pragma once

#include <span>

#include "kernel.h"
#include "pool.h"

namespace zinc {

// `data`: source rows in file order. Without `row_index` they are the planes * rows rows of the tensor; with
// it, row r of the tensor is source row row_index[r]. Throws std::invalid_argument when sizes or indices
// contradict. `codebook`: format.codebook_bytes bytes, the digits of all points (iq_formats.cpp); one that a
// format does not know stands for some value of its table.
PackedTensor pack(Pool& pool, const WeightFormat& format, std::span<const std::byte> data, int64_t planes,
                  int64_t rows, int64_t cols, const int64_t* row_index, size_t n_index,
                  std::span<const uint8_t> codebook);

PackedTensor pack_vector(const float* data, size_t n);

// Every value of a packed tensor: out [planes][rows][cols].
void unpack(const PackedTensor& tensor, float* out);

}  // namespace zinc
