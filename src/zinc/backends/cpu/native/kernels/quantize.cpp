// quantize: converts rows of floats to a format that matrix products read: 8-bit or 15-bit blocks, or
// bfloat16.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "../half.h"
#include "../q8row.h"
#include "../simd.h"
#include "../unroll.h"
#include "rows.h"
#include "table.h"

namespace zinc::ZINC_LEVEL {
namespace {

using in = operands::quantize;

constexpr float kLeast = 1e-30f;  // a block whose values are all smaller is stored as zeros

// The bits of an infinite float. Those of NaN are larger, as integers.
constexpr int32_t kInfinityBits = 0x7f800000;

// The largest absolute value of n values; NaN if one of them is infinite or NaN.
float largest(const float* x, int n) {
    // As integers, the bits of non-negative floats are ordered like the floats; infinity and NaN are the
    // largest.
    I32x16 top = I32x16::zero();
    for_lanes(0, n, [&](int i, auto lanes) { top = max(top, bits(abs(load(x + i, lanes)))); });
    const int32_t top_bits = hmax(top);
    if (top_bits >= kInfinityBits) return std::numeric_limits<float>::quiet_NaN();
    float amax;
    std::memcpy(&amax, &top_bits, 4);
    return amax;
}

// Quantises one block of n values, n % 16 == 0. Stores q; returns the scale d.
[[gnu::always_inline]] inline float quantize_block(const float* x, int n, int8_t* q) {
    const float amax = largest(x, n);
    if (std::isnan(amax)) {  // a scale of NaN makes every product NaN
        std::memset(q, 0, static_cast<size_t>(n));
        return amax;
    }
    const F32x16 inverse = F32x16::set1(amax > kLeast ? 127.0f / amax : 0.0f);
    for (int i = 0; i < n; i += 16) to_i32(F32x16::load(x + i) * inverse).store_i8(q + i);
    return amax > kLeast ? amax / 127.0f : 0.0f;
}

// Stores the sum of each sixteen of n values, n % 32 == 0.
void sum_sixteens(const int8_t* q, int64_t n, int16_t* sums) {
    int32_t four[4];
    int64_t i = 0;
    for (; i + 64 <= n; i += 64, sums += 4) {
        sums16(q + i, four);
        for (int j = 0; j < 4; ++j) sums[j] = static_cast<int16_t>(four[j]);
    }
    if (i == n) return;
    int8_t rest[64] = {};
    std::memcpy(rest, q + i, 32);
    sums16(rest, four);
    for (int j = 0; j < 2; ++j) sums[j] = static_cast<int16_t>(four[j]);
}

// Quantises kBlocks <= 16 blocks of 32, an even number, and stores q, d and the sums of sixteen. Returns
// false if a value is infinite or NaN. The maxima and scales of all blocks are computed together: those of
// one block are a long chain of dependent operations.
template <int kBlocks>
bool quantize_blocks(const float* x, int8_t* q, float* d, int16_t* sums) {
    I32x16 tops[16];
    repeat<16>([&](int b) {
        tops[b] = b < kBlocks
                      ? max(bits(abs(F32x16::load(x + b * 32))), bits(abs(F32x16::load(x + b * 32 + 16))))
                      : I32x16::zero();
    });
    const I32x16 top = hmax(tops);
    if (hmax(top) >= kInfinityBits) return false;
    int32_t top_bits[16];
    float amax[16], inverse[16];
    top.store(top_bits);
    std::memcpy(amax, top_bits, sizeof amax);
    const F32x16 a = F32x16::load(amax), most = F32x16::set1(127.0f), least = F32x16::set1(kLeast);
    where_lt(least, a, most / a, F32x16::zero()).store(inverse);
    where_lt(least, a, a / most, F32x16::zero()).store_n(d, kBlocks);
    for (int b = 0; b < kBlocks; b += 2) {
        I32x16 v[4];
        repeat<4>([&](int i) {
            v[i] = to_i32(F32x16::load(x + b * 32 + i * 16) * F32x16::set1(inverse[b + i / 2]));
        });
        store_i8(v, q + b * 32, sums + b * 2);
    }
    return true;
}

// Quantises as many of the `n` blocks as there is a function for, and returns their number.
int quantize_some(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums) {
    if (n >= 16) return quantize_blocks<16>(x, q, d, sums) ? 16 : 0;
    if (n >= 12) return quantize_blocks<12>(x, q, d, sums) ? 12 : 0;
    if (n >= 8) return quantize_blocks<8>(x, q, d, sums) ? 8 : 0;
    if (n >= 4) return quantize_blocks<4>(x, q, d, sums) ? 4 : 0;
    return 0;
}

// Quantises blocks [first, last) of a row of `cols` columns; x points at the first column of block `first`.
void quantize_32(const float* x, int64_t first, int64_t last, int cols, std::byte* dst) {
    const Q8Row row(RowFormat::q8_32, cols);
    auto* q = reinterpret_cast<int8_t*>(dst);
    auto* d = reinterpret_cast<float*>(dst + row.d);
    auto* s = reinterpret_cast<float*>(dst + row.s);
    auto* sum16 = reinterpret_cast<int16_t*>(dst + row.sum);
    int64_t b = first;
    for (int n = 1; n > 0 && b < last; b += n)
        n = quantize_some(x + (b - first) * 32, last - b, q + b * 32, d + b, sum16 + b * 2);
    const int64_t rest = b;
    for (; b < last; ++b) d[b] = quantize_block(x + (b - first) * 32, 32, q + b * 32);
    if (rest < last) sum_sixteens(q + rest * 32, (last - rest) * 32, sum16 + rest * 2);
    // Sixteen blocks at once where they are all in this range or the padding of the row completes them:
    // another thread may store the other blocks.
    const int64_t end = last == row.blocks ? last : last / 16 * 16;
    for (b = first; b < last;) {
        if (b % 16 == 0 && b < end) {
            const int n = static_cast<int>(std::min<int64_t>(16, last - b));
            const I16x32 pairs = I16x32::load(sum16 + b * 2);
            (F32x16::load_n(d + b, n) * to_f32(pairs.even() + pairs.odd())).store_n(s + b, n);
            b += 16;
        } else {
            s[b] = d[b] * static_cast<float>(sum16[b * 2] + sum16[b * 2 + 1]);
            ++b;
        }
    }
}

void quantize_256(const float* x, int64_t first, int64_t last, int cols, std::byte* dst) {
    const Q8Row row(RowFormat::q8_256, cols);
    auto* q = reinterpret_cast<int8_t*>(dst);
    auto* d = reinterpret_cast<float*>(dst + row.d);
    auto* sum32 = reinterpret_cast<int16_t*>(dst + row.sum);
    auto* sum16 = reinterpret_cast<int16_t*>(dst + row.sum16);
    for (int64_t b = first; b < last; ++b) {
        const int n = static_cast<int>(std::min<int64_t>(256, cols - b * 256));
        d[b] = quantize_block(x + (b - first) * 256, n, q + b * 256);
        int16_t* sums = sum16 + b * 16;
        std::fill_n(sums, 16, int16_t{0});
        sum_sixteens(q + b * 256, n, sums);
        for (int i = 0; i < 8; ++i) sum32[b * 8 + i] = static_cast<int16_t>(sums[2 * i] + sums[2 * i + 1]);
    }
}

void quantize_15(const float* x, int64_t first, int64_t last, int cols, std::byte* dst) {
    constexpr float kMost = 16383;
    auto* d = reinterpret_cast<float*>(dst + Q15Row(cols).d);
    for (int64_t b = first; b < last; ++b, x += 32) {
        auto* q = reinterpret_cast<int16_t*>(dst) + b * 32;
        const int n = static_cast<int>(std::min<int64_t>(32, cols - b * 32));
        const float amax = largest(x, n);
        d[b] = amax <= kLeast ? 0.0f : amax / kMost;
        int32_t rounded[32] = {};
        const F32x16 inverse = F32x16::set1(kMost / amax);
        if (amax > kLeast)  // false for NaN too
            for_lanes(0, n,
                      [&](int i, auto lanes) { to_i32(load(x + i, lanes) * inverse).store(rounded + i); });
        for (int i = 0; i < 32; ++i) q[i] = static_cast<int16_t>(rounded[i]);
    }
}

void prepare(Launch& launch, const Attrs&) {
    require_operands(launch, in::n_inputs, 1);
    require_rows(launch, launch.in[in::x], "x", RowFormat::f32);
    const Operand& y = launch.out[0];
    require_rows(launch, y, "y", launch.in[in::x].cols);
    require(launch, y.format != RowFormat::f32, "y must be q8_32, q8_256, q15_32 or bf16");
}

constexpr int kRowsPerChunk = 4;

int chunks(const Launch& launch, const Batch& batch, int) {
    return (launch.rows(batch) + kRowsPerChunk - 1) / kRowsPerChunk;
}

void run(const Launch& launch, const Batch& batch, int chunk, Scratch&) {
    const Operand &x = launch.in[in::x], &y = launch.out[0];
    const int last = std::min(launch.rows(batch), (chunk + 1) * kRowsPerChunk);
    for (int t = chunk * kRowsPerChunk; t < last; ++t)
        quantize_row(x.row(t), x.cols, y.format, y.row<std::byte>(t));
}

}  // namespace

void quantize_part(const float* x, int first, int n, int cols, RowFormat format, std::byte* dst) {
    switch (format) {
        case RowFormat::f32: std::memmove(dst + int64_t{first} * 4, x, static_cast<size_t>(n) * 4); break;
        case RowFormat::q8_32: quantize_32(x, first / 32, (first + n) / 32, cols, dst); break;
        case RowFormat::q8_256: quantize_256(x, first / 256, (first + n + 255) / 256, cols, dst); break;
        case RowFormat::q15_32: quantize_15(x, first / 32, (first + n + 31) / 32, cols, dst); break;
        case RowFormat::bf16: {
            auto* y = reinterpret_cast<uint16_t*>(dst) + first;
            for (int i = 0; i < n; ++i) y[i] = f32_to_bf16(x[i]);
            if (first + n == cols && cols % 2) y[n] = 0;
        }
    }
}

void quantize_row(const float* x, int cols, RowFormat format, std::byte* dst) {
    quantize_part(x, 0, cols, cols, format, dst);
}

const Kernel quantize_kernel{"quantize", prepare, chunks, run};

}  // namespace zinc::ZINC_LEVEL
