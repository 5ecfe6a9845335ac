// Turns rows as they lie in a GGUF file into the tiles that the kernels read, and back.
#pragma once

#include <span>

#include "kernel.h"
#include "pool.h"

namespace zinc {

// An empty tensor of `planes` matrices [rows, cols], to be filled by `pack_tiles`. Throws
// std::invalid_argument when the sizes are impossible or do not suit the format.
PackedTensor allocate(const WeightFormat& format, int64_t planes, int64_t rows, int64_t cols);

// Tiles of a tensor, counted over all planes; each plane ends with a tile that may be partly filled.
int64_t tile_count(const PackedTensor& tensor);

// Fills the tiles from `first_tile` on with `data`: rows as a GGUF file holds them, from the first row of
// that tile to the last row of a tile. Returns the tile behind the last one that is filled. `codebook`:
// format.codebook_bytes bytes, the digits of all points (iq_formats.cpp); a point that the format does not
// know stands for some value of its table. Throws std::invalid_argument when sizes contradict.
int64_t pack_tiles(Pool& pool, PackedTensor& tensor, int64_t first_tile, std::span<const std::byte> data,
                   std::span<const uint8_t> codebook);

// A whole tensor at once. Without `row_index` `data` are its planes * rows rows; with it, row r of the tensor
// is row row_index[r] of `data`. Throws std::invalid_argument when sizes or indices contradict.
PackedTensor pack(Pool& pool, const WeightFormat& format, std::span<const std::byte> data, int64_t planes,
                  int64_t rows, int64_t cols, const int64_t* row_index, size_t n_index,
                  std::span<const uint8_t> codebook);

PackedTensor pack_vector(const float* data, size_t n);

// Every value of a packed tensor: out [planes][rows][cols].
void unpack(const PackedTensor& tensor, float* out);

}  // namespace zinc
