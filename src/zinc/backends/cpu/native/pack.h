// Packing of rows from a GGUF file into the tiles that kernels read, and unpacking to floats.
#pragma once

#include <span>

#include "kernel.h"
#include "pool.h"

namespace zinc {

// Returns an empty tensor of `planes` matrices [rows, cols] for pack_tiles to fill. Throws
// std::invalid_argument if the sizes are impossible or do not suit the format.
PackedTensor allocate(const WeightFormat& format, int64_t planes, int64_t rows, int64_t cols);

// Number of tiles of a tensor over all planes. The last tile of a plane may be partly filled.
int64_t tile_count(const PackedTensor& tensor);

// Packs `data`, rows in the encoding of the GGUF file, into the tiles starting at `first_tile`. The rows must
// end with the last row of a tile. `codebook` has format.codebook_bytes bytes, the digits of all points
// (iq_formats.cpp); an unknown digit decodes to some value of the format's table. Returns the index after the
// last tile that was filled. Throws std::invalid_argument if the sizes contradict each other.
int64_t pack_tiles(Pool& pool, PackedTensor& tensor, int64_t first_tile, std::span<const std::byte> data,
                   std::span<const uint8_t> codebook);

// Packs a whole tensor. Without `row_index`, `data` holds its planes * rows rows; with it, row r of the
// tensor is row row_index[r] of `data`. Throws std::invalid_argument if sizes or indices contradict each
// other.
PackedTensor pack(Pool& pool, const WeightFormat& format, std::span<const std::byte> data, int64_t planes,
                  int64_t rows, int64_t cols, const int64_t* row_index, size_t n_index,
                  std::span<const uint8_t> codebook);

PackedTensor pack_vector(const float* data, size_t n);

// Decodes a packed tensor to out, float [planes][rows][cols].
void unpack(const PackedTensor& tensor, float* out);

}  // namespace zinc
