// Activation rows as the kernels between the matrix products hand them on.
//
//   f32      float [cols]
//   bf16     uint16 [cols], zero to an even number
//   q8_32    int8 [cols] | float d [nb] | float s [nb] | int16 sum16 [2 nb]          nb = cols / 32
//   q8_256   int8 [cols] | float d [nb] | int16 sum32 [8 nb] | int16 sum16 [16 nb]   nb = ceil(cols / 256)
//
// x = d * q with q in [-127, 127]; sum16 and sum32 are sums of so many q, s is d times the sum of a block.
// Weights have minimums or are stored with an offset, so the kernels need these sums; they are made once
// here, for all consumers. Every part starts at a multiple of 64 bytes; the same column is at the same offset
// in every row. cols % 32 == 0 for the quantised forms; the last block of q8_256 may be short, its missing
// sums are zero.
#pragma once

#include "kernel.h"

namespace zinc {

constexpr int64_t align64(int64_t n) { return (n + 63) / 64 * 64; }

// Where the parts of a quantised row start, in bytes.
struct Q8Row {
    int64_t blocks, d, s, sum, sum16, bytes;
    constexpr Q8Row(Act act, int64_t cols) {
        if (act == Act::q8_32) {
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

// The stride of a row. Never a multiple of 1 KiB: the same column of many rows would share a few sets of the
// caches.
constexpr int64_t row_bytes(Act act, int64_t cols) {
    int64_t bytes = 0;
    switch (act) {
        case Act::f32: bytes = align64(cols * 4); break;
        case Act::bf16: bytes = align64((cols + cols % 2) * 2); break;
        default: bytes = Q8Row(act, cols).bytes;
    }
    return bytes % 1024 == 0 ? bytes + 64 : bytes;
}

// Columns that share a scale.
constexpr int act_block(Act act) { return act == Act::q8_32 ? 32 : act == Act::q8_256 ? 256 : 1; }

#if defined(ZINC_LEVEL)
namespace ZINC_LEVEL {

// Quantises (or copies, or rounds) one row of `cols` floats into `dst`, row_bytes(act, cols) bytes. NaN and
// infinity poison their block's scale, so that they come out of the product instead of vanishing in it.
void quantize_row(const float* x, int cols, Act act, std::byte* dst);

// Columns [first, first + n) of that row alone, from x[0 .. n): whole blocks of `act_block` columns, or up to
// the end.
void quantize_part(const float* x, int first, int n, int cols, Act act, std::byte* dst);

}  // namespace ZINC_LEVEL
#endif
}  // namespace zinc
