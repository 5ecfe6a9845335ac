#include "pack.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace zinc {
namespace {

void require(bool ok, const std::string& text) {
    if (!ok) throw std::invalid_argument("pack: " + text);
}

constexpr int kTilesPerChunk = 8;

int64_t tiles_per_plane(const PackedTensor& t) { return (t.rows + kTileRows - 1) / kTileRows; }

// Index of the first row of a tile, counted over all planes.
int64_t first_row(const PackedTensor& t, int64_t tile) {
    const int64_t tiles = tiles_per_plane(t);
    return tile / tiles * t.rows + tile % tiles * kTileRows;
}

// Bytes of a source row. Throws unless `data` consists of whole rows.
int64_t source_row_bytes(const PackedTensor& t, std::span<const std::byte> data) {
    const int64_t row = t.cols / t.format->block * t.format->source_bytes;
    require(static_cast<int64_t>(data.size()) % row == 0,
            "the data do not consist of whole rows of " + std::to_string(row) + " bytes");
    return row;
}

void check_codebook(const WeightFormat& format, std::span<const uint8_t> codebook) {
    require(codebook.size() == static_cast<size_t>(format.codebook_bytes),
            std::string(format.name) + " needs a codebook of " + std::to_string(format.codebook_bytes) +
                " bytes, not " + std::to_string(codebook.size()));
}

// Packs tiles [first, last). row_at(r) returns the source of row r, counted over all planes.
template <class RowAt>
void fill(Pool& pool, PackedTensor& t, int64_t first, int64_t last, std::span<const uint8_t> codebook,
          RowAt&& row_at) {
    const int64_t tiles = tiles_per_plane(t);
    const auto n_chunks = static_cast<int>((last - first + kTilesPerChunk - 1) / kTilesPerChunk);
    pool.for_chunks(n_chunks, [&](int chunk, Scratch&) {
        const int64_t begin = first + int64_t{chunk} * kTilesPerChunk;
        for (int64_t i = begin; i < std::min<int64_t>(last, begin + kTilesPerChunk); ++i) {
            const int64_t plane = i / tiles, tile = i % tiles;
            const std::byte* sources[kTileRows];
            for (int lane = 0; lane < kTileRows; ++lane) {
                const int64_t r = tile * kTileRows + lane;
                sources[lane] = r < t.rows ? row_at(plane * t.rows + r) : nullptr;
            }
            t.format->pack(sources, t.cols, codebook.data(),
                           t.bytes.data + plane * t.plane_bytes + tile * t.tile_bytes);
        }
    });
}

}  // namespace

PackedTensor allocate(const WeightFormat& format, int64_t planes, int64_t rows, int64_t cols) {
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    auto require_possible = [&](bool ok) {
        require(ok, "a tensor of " + std::to_string(planes) + " x " + std::to_string(rows) + " x " +
                        std::to_string(cols) + " values is not possible");
    };
    require_possible(planes >= 1 && rows >= 1 && cols >= 1 && planes <= kLimit && rows <= kLimit / planes &&
                     cols <= kLimit);
    require(cols % format.block == 0, std::to_string(cols) + " columns are not whole blocks of " +
                                          std::to_string(format.block) + " as " + format.name + " needs");
    PackedTensor t;
    t.format = &format;
    t.planes = planes;
    t.rows = rows;
    t.cols = cols;
    t.tile_bytes = format.tile_bytes(cols);
    require_possible(tile_count(t) <= std::numeric_limits<int64_t>::max() / t.tile_bytes);
    t.plane_bytes = tiles_per_plane(t) * t.tile_bytes;
    t.bytes = Bytes::for_model(static_cast<size_t>(planes * t.plane_bytes));
    return t;
}

int64_t tile_count(const PackedTensor& t) {
    require(t.format != nullptr, "a vector has no tiles");
    return t.planes * tiles_per_plane(t);
}

int64_t pack_tiles(Pool& pool, PackedTensor& t, int64_t first_tile, std::span<const std::byte> data,
                   std::span<const uint8_t> codebook) {
    require(first_tile >= 0 && first_tile < tile_count(t), "there is no tile " + std::to_string(first_tile));
    check_codebook(*t.format, codebook);
    const int64_t row = source_row_bytes(t, data);
    const int64_t begin = first_row(t, first_tile), end = begin + static_cast<int64_t>(data.size()) / row;
    require(end > begin && end <= t.planes * t.rows,
            "there are " + std::to_string(end) + " rows, not " + std::to_string(t.planes * t.rows));
    const int64_t tiles = tiles_per_plane(t), in_plane = end % t.rows;
    require(in_plane % kTileRows == 0, "the data end within a tile");
    const int64_t last_tile = end / t.rows * tiles + in_plane / kTileRows;
    fill(pool, t, first_tile, last_tile, codebook,
         [&](int64_t r) { return data.data() + (r - begin) * row; });
    return last_tile;
}

PackedTensor pack(Pool& pool, const WeightFormat& format, std::span<const std::byte> data, int64_t planes,
                  int64_t rows, int64_t cols, const int64_t* row_index, size_t n_index,
                  std::span<const uint8_t> codebook) {
    PackedTensor t = allocate(format, planes, rows, cols);
    check_codebook(format, codebook);
    const int64_t row = source_row_bytes(t, data), n_source = static_cast<int64_t>(data.size()) / row;
    require(row_index ? static_cast<int64_t>(n_index) == planes * rows : n_source == planes * rows,
            "there are " + std::to_string(row_index ? static_cast<int64_t>(n_index) : n_source) +
                " rows, not " + std::to_string(planes * rows));
    if (row_index)
        require(
            std::all_of(row_index, row_index + n_index, [&](int64_t r) { return r >= 0 && r < n_source; }),
            "row_index names a row that the data do not have");
    fill(pool, t, 0, tile_count(t), codebook,
         [&](int64_t r) { return data.data() + (row_index ? row_index[r] : r) * row; });
    return t;
}

PackedTensor pack_vector(const float* data, size_t n) {
    require(n > 0, "a vector needs at least one value");
    PackedTensor t;
    t.rows = 1;
    t.cols = static_cast<int64_t>(n);
    t.bytes = Bytes(n * 4);
    std::memcpy(t.bytes.data, data, n * 4);
    return t;
}

void unpack(const PackedTensor& t, float* out) {
    if (!t.format) {
        std::memcpy(out, t.vector(), static_cast<size_t>(t.cols) * 4);
        return;
    }
    for (int64_t plane = 0; plane < t.planes; ++plane)
        for (int64_t r = 0; r < t.rows; ++r, out += t.cols)
            t.format->decode(t.tile(plane, r / kTileRows), t.cols, static_cast<int>(r % kTileRows), out);
}

}  // namespace zinc
