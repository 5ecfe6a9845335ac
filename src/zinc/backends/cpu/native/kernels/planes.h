// Layout of the integers of a weight tile.
//
// A tile has 16 rows. Along k, values are in groups of four. The four values of a row are adjacent, so a
// group is one vector of 16 x 4 bytes, the operand of the 8-bit dot product of every machine:
//
//   byte 4 r + j of group g = row r, k = 4 g + j
//
// Values of fewer than 8 bits are split into planes of 1, 2 or 4 bits. Each vector of a plane holds 8 / bits
// groups, so unpacking a group is one load, one shift and one mask: group g is in vector g % n at bit (g / n)
// * bits, where n is the number of vectors of the plane in a chunk. A chunk has 16 groups in K-quants and 8
// in blocks of 32.
#pragma once

#include <array>
#include <cstring>
#include <iterator>

#include "../simd.h"

namespace zinc::ZINC_LEVEL {

template <int kBits, int kGroups>
struct Plane {
    static constexpr int kVectors = kGroups * kBits / 8;
    static constexpr int kBytes = kVectors * 64;

    // Returns group g, with its values in bits [at, at + kBits) of each byte.
    template <int g, int at>
    static U8x64 get(const std::byte* plane) {
        constexpr int from = bit<g>();
        const U8x64 raw = U8x64::load(plane + g % kVectors * 64);
        if constexpr (kBits == 8) return raw;
        const U8x64 mask = U8x64::set1(static_cast<uint8_t>(((1 << kBits) - 1) << at));
        if constexpr (from > at) return shr<from - at>(raw) & mask;
        if constexpr (from < at) return shl<at - from>(raw) & mask;
        return raw & mask;
    }
    // Returns the lowest bit that values of group g occupy in the bytes of their vector.
    template <int g>
    static constexpr int bit() {
        return g / kVectors * kBits;
    }
    // Returns group g without shifting: its values stay at bit<g>() of each byte.
    template <int g>
    static U8x64 raw(const std::byte* plane) {
        return get<g, bit<g>()>(plane);
    }
    // Stores four masked values of a row in a plane that was zero.
    static void put(std::byte* plane, int g, int row, uint32_t four) {
        std::byte* p = plane + g % kVectors * 64 + row * 4;
        uint32_t word;
        std::memcpy(&word, p, 4);
        word |= four << (g / kVectors * kBits);
        std::memcpy(p, &word, 4);
    }
};

// A chunk of values of kLow + kHigh bits: the low plane, then the high plane. kHigh may be 0.
template <int kLow, int kHigh, int kGroups>
struct Quants {
    using Low = Plane<kLow, kGroups>;
    using High = Plane<kHigh, kGroups>;
    static constexpr int kBits = kLow + kHigh;
    static constexpr int kBytes = Low::kBytes + High::kBytes;

    template <int g>
    static U8x64 get(const std::byte* chunk) {
        const U8x64 low = Low::template get<g, 0>(chunk);
        if constexpr (kHigh == 0) {
            return low;
        } else {
            return low | High::template get<g, kLow>(chunk + Low::kBytes);
        }
    }
    static void put(std::byte* chunk, int g, int row, const uint8_t* values) {
        uint32_t four;
        std::memcpy(&four, values, 4);
        Low::put(chunk, g, row, four & ((1u << kLow) - 1) * 0x01010101u);
        if constexpr (kHigh > 0)
            High::put(chunk + Low::kBytes, g, row, four >> kLow & ((1u << kHigh) - 1) * 0x01010101u);
    }
};

// The sixteen values of IQ4_NL and IQ4_XS, stored like 8-bit weights.
inline constexpr std::array<uint8_t, 16> kIQ4Values = [] {
    constexpr int kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    std::array<uint8_t, 16> table{};
    for (size_t i = 0; i < 16; ++i) table[i] = static_cast<uint8_t>(kValues[i] + kOffset8);
    return table;
}();

// A format with a kTable stores indices into it. kDotBits is the width of the values in the table.
template <class F>
U8x64 lookup_values(U8x64 u) {
    if constexpr (requires { F::kTable; }) {
        return lookup(U8x64::repeat(std::data(F::kTable)), u);
    } else {
        return u;
    }
}
template <class F>
constexpr int dot_bits() {
    if constexpr (requires { F::kTable; }) {
        return F::kDotBits;
    } else {
        return F::kLow + F::kHigh;
    }
}

}  // namespace zinc::ZINC_LEVEL
