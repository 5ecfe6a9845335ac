// Layouts of the row formats.
//
// clang-format off
//   f32      float [cols]
//   bf16     uint16 [cols], padded with a zero to an even number
//   q8_32    int8 [cols] | float d [nb] | float s [nb] | int16 sum16 [2 nb]          nb = cols / 32
//   q8_256   int8 [cols] | float d [nb] | int16 sum32 [8 nb] | int16 sum16 [16 nb]   nb = ceil(cols / 256)
//   q15_32   int16 [32 nb] | float d [nb]                                            nb = ceil(cols / 32)
// clang-format on
//
// x = d * q with q in [-127, 127], or in [-16383, 16383] for 15 bits. sum16 and sum32 are the sums of 16 and
// 32 consecutive q; s is d times the sum of a block. Products with weights that have minimums or an offset
// need these sums, so they are computed once, when a row is quantised. Every part starts at a multiple of 64
// bytes. Rows of 8 bits need cols % 32 == 0; the last block of q8_256 may be short, and the sums of its
// missing values are zero. The last block of q15_32 may have any length; its missing values are zero.
#pragma once

#include "kernel.h"

namespace zinc {

constexpr int64_t align64(int64_t n) { return (n + 63) / 64 * 64; }

// Byte offsets of the parts of a quantised row.
struct Q8Row {
    int64_t blocks, d, s, sum, sum16, bytes;
    constexpr Q8Row(RowFormat format, int64_t cols) {
        if (format == RowFormat::q8_32) {
            blocks = cols / 32;
            d = align64(cols);
            s = d + align64(blocks * 4);
            sum = s + align64(blocks * 4);
            sum16 = sum + align64(blocks * 4);
            bytes = sum16;
        } else {
            blocks = (cols + 255) / 256;
            d = align64(cols);
            s = sum = d + align64(blocks * 4);
            sum16 = sum + align64(blocks * 16);
            bytes = sum16 + align64(blocks * 32);
        }
    }
};

// Byte offsets of the parts of a row of q15_32.
struct Q15Row {
    int64_t blocks, d, bytes;
    constexpr explicit Q15Row(int64_t cols)
        : blocks((cols + 31) / 32), d(blocks * 64), bytes(d + align64(blocks * 4)) {}
};

// Whether the format can store rows of `cols` columns.
constexpr bool has_whole_blocks(RowFormat format, int64_t cols) {
    return (format != RowFormat::q8_32 && format != RowFormat::q8_256) || cols % 32 == 0;
}

// Bytes from row to row. Never a multiple of 1 KiB, so that one column of many rows does not map to a few
// cache sets.
constexpr int64_t row_bytes(RowFormat format, int64_t cols) {
    int64_t bytes = 0;
    switch (format) {
        case RowFormat::f32: bytes = align64(cols * 4); break;
        case RowFormat::bf16: bytes = align64((cols + cols % 2) * 2); break;
        case RowFormat::q15_32: bytes = Q15Row(cols).bytes; break;
        default: bytes = Q8Row(format, cols).bytes;
    }
    return bytes % 1024 == 0 ? bytes + 64 : bytes;
}

// Number of columns that share a scale.
constexpr int format_block(RowFormat format) {
    if (format == RowFormat::q8_256) return 256;
    return format == RowFormat::q8_32 || format == RowFormat::q15_32 ? 32 : 1;
}

#if defined(ZINC_LEVEL)
namespace ZINC_LEVEL {

// Stores one row of `cols` floats as `format` in `dst`, which has row_bytes(format, cols) bytes. NaN or
// infinity makes the scale of its block NaN, so that products show it.
void quantize_row(const float* x, int cols, RowFormat format, std::byte* dst);

// Stores columns [first, first + n) of such a row, from x[0 .. n). The range must consist of whole blocks of
// format_block(format) columns or end with the row.
void quantize_part(const float* x, int first, int n, int cols, RowFormat format, std::byte* dst);

}  // namespace ZINC_LEVEL
#endif
}  // namespace zinc
