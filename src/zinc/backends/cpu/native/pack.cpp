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

}  // namespace

PackedTensor pack(Pool& pool, const WeightFormat& format, std::span<const std::byte> data, int64_t planes,
                  int64_t rows, int64_t cols, const int64_t* row_index, size_t n_index,
                  std::span<const uint8_t> codebook) {
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    require(planes >= 1 && rows >= 1 && cols >= 1 && planes <= kLimit && rows <= kLimit / planes &&
                cols <= kLimit,
            "a tensor of " + std::to_string(planes) + " x " + std::to_string(rows) + " x " +
                std::to_string(cols) + " values is not possible");
    require(cols % format.block == 0, std::to_string(cols) + " columns are not whole blocks of " +
                                          std::to_string(format.block) + " as " + format.name + " needs");
    require(codebook.size() == static_cast<size_t>(format.codebook_bytes),
            std::string(format.name) + " needs a codebook of " + std::to_string(format.codebook_bytes) +
                " bytes, not " + std::to_string(codebook.size()));
    const int64_t row = cols / format.block * format.source_bytes;
    const int64_t n_source = static_cast<int64_t>(data.size()) / row;
    require(static_cast<int64_t>(data.size()) % row == 0,
            "the data are not whole rows of " + std::to_string(row) + " bytes");
    require(row_index ? static_cast<int64_t>(n_index) == planes * rows : n_source == planes * rows,
            "there are " + std::to_string(row_index ? static_cast<int64_t>(n_index) : n_source) +
                " rows, not " + std::to_string(planes * rows));
    if (row_index)
        require(
            std::all_of(row_index, row_index + n_index, [&](int64_t r) { return r >= 0 && r < n_source; }),
            "row_index names a row that the data do not have");

    const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    PackedTensor t;
    t.format = &format;
    t.planes = planes;
    t.rows = rows;
    t.cols = cols;
    t.tile_bytes = format.tile_bytes(cols);
    t.plane_bytes = tiles * t.tile_bytes;
    t.bytes = Bytes::lasting(static_cast<size_t>(planes * t.plane_bytes));
    const int64_t total = planes * tiles;
    pool.for_chunks(static_cast<int>((total + kTilesPerChunk - 1) / kTilesPerChunk), [&](int chunk,
                                                                                         Scratch&) {
        const int64_t last = std::min<int64_t>(total, (int64_t{chunk} + 1) * kTilesPerChunk);
        for (int64_t i = int64_t{chunk} * kTilesPerChunk; i < last; ++i) {
            const int64_t plane = i / tiles, tile = i % tiles;
            const std::byte* sources[kTileRows];
            for (int lane = 0; lane < kTileRows; ++lane) {
                const int64_t r = tile * kTileRows + lane, out = plane * rows + r;
                sources[lane] = r < rows ? data.data() + (row_index ? row_index[out] : out) * row : nullptr;
            }
            format.pack(sources, cols, codebook.data(),
                        t.bytes.data + plane * t.plane_bytes + tile * t.tile_bytes);
        }
    });
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
