// The IQ formats with blocks of 256 (k_tile.h): groups of eight or four values are points of a codebook with
// signs or a shift, under integer scales.
//
// The file has an index for each group. Looking points up during a product would cost a table load for each
// eight values, and not every level has a vector instruction for it, so packing does it once. The coordinates
// of points have few different values, so a tile stores the rank of each coordinate, with sign and shift.
// Bits a weight:
//
//               file   tile   values of a coordinate
//   IQ1_S       1.56   2.31   3
//   IQ1_M       1.75   3.56   6      its shifts change within the values that share a sum of x
//   IQ2_XXS     2.06   3.31   6
//   IQ2_XS      2.31   3.56   6
//   IQ2_S       2.56   3.56   6
//   IQ3_XXS     3.06   4.31   16
//   IQ3_S       3.44   4.31   16
//   IQ4_XS      4.25   4.31   16
//
// A codebook is passed as the digits of its points. Digits number the values of a coordinate by ascending
// magnitude (IQ1: from -1 upwards).
#include "k_tile.h"
#include "k_tile_amx.h"

namespace zinc::ZINC_LEVEL {
namespace {

using namespace k_tile;

// The rank of a coordinate and its sign among all 2 n signed values, of which the upper n are positive.
inline uint8_t rank_of(int digit, bool negative, int n) {
    return static_cast<uint8_t>(negative ? n - 1 - digit : n + digit);
}

// Stores the ranks of eight coordinates with digits point(i) and sign bits `signs`.
template <class Point>
inline void signed_group(Point&& point, unsigned signs, int n, uint8_t* u) {
    for (int i = 0; i < 8; ++i) u[i] = rank_of(point(i), signs >> i & 1, n);
}

// Returns eight sign bits from the seven stored ones. The eighth makes the number of negative values even.
inline unsigned even_signs(unsigned seven) {
    return seven | static_cast<unsigned>(__builtin_parity(seven)) << 7;
}

// Scale i is 2 s + 1 for s of four bits, two to a byte. The constant factor is kFactor of the format.
inline int8_t odd_scale(const uint8_t* nibbles, int i) {
    return static_cast<int8_t>((nibbles[i / 2] >> (i % 2 * 4) & 15) * 2 + 1);
}

// The values of IQ4_NL, with integer scales.
struct IQ4_XS {
    static constexpr int kSourceBytes = 136, kSub = 32, kLow = 4, kHigh = 0, kDotBits = 8;
    static constexpr int kOffset = kOffset8;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "IQ4_XS";
    static constexpr auto kTable = kIQ4Values;
    static void read(const uint8_t* b, Source& out) {
        out.d = half_at(b);
        const int high = half_at(b + 2);
        for (int i = 0; i < 8; ++i) {
            const int low = b[4 + i / 2] >> (i % 2 * 4) & 15;
            out.scale[i] = static_cast<int8_t>((low | (high >> (2 * i) & 3) << 4) - 32);
            for (int j = 0; j < 16; ++j) {
                out.u[i * 32 + j] = b[8 + i * 16 + j] & 15;
                out.u[i * 32 + 16 + j] = b[8 + i * 16 + j] >> 4;
            }
        }
    }
};

// Odd magnitudes 1 to 15. The stored u is (value + 15) / 2.
struct IQ3_S {
    static constexpr int kSourceBytes = 110, kSub = 32, kLow = 4, kHigh = 0, kOffset = 15;
    static constexpr int kCodebook = 512 * 4;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "IQ3_S";
    static I16x32 scale(I16x32 s) { return shl<1>(s); }
    static I16x32 offset(I16x32 s) { return s * 15; }
    static void read(const uint8_t* b, const uint8_t* codebook, Source& out) {
        const uint8_t *low = b + 2, *high = b + 66, *signs = b + 74, *scales = b + 106;
        out.d = half_at(b);
        for (int i = 0; i < 8; ++i) out.scale[i] = odd_scale(scales, i);
        for (int group = 0; group < 32; ++group) {
            const auto digit = [&](int i) {
                const int j = group * 2 + i / 4;
                return codebook[(low[j] | (high[j / 8] >> (j % 8) & 1) << 8) * 4 + i % 4];
            };
            signed_group(digit, signs[group], 8, out.u + group * 8);
        }
    }
};

// Magnitudes 4, 12, ... 52 and 62, stored halved.
struct IQ3_XXS {
    static constexpr int kSourceBytes = 98, kSub = 32, kLow = 4, kHigh = 0, kOffset = 31;
    static constexpr int kCodebook = 256 * 4, kDotBits = 6;
    static constexpr float kFactor = 0.5f;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "IQ3_XXS";
    static constexpr uint8_t kTable[16] = {0, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 62};
    static void read(const uint8_t* b, const uint8_t* codebook, Source& out) {
        out.d = half_at(b);
        for (int sub = 0; sub < 8; ++sub) {
            const uint32_t word = word_at(b + 66 + sub * 4);  // 4 x 7 sign bits, scale
            out.scale[sub] = static_cast<int8_t>((word >> 28) * 2 + 1);
            for (int group = 0; group < 4; ++group) {
                const uint8_t* index = b + 2 + sub * 8 + group * 2;
                const auto digit = [&](int i) { return codebook[index[i / 4] * 4 + i % 4]; };
                signed_group(digit, even_signs(word >> (7 * group) & 127), 8, out.u + sub * 32 + group * 8);
            }
        }
    }
};

// Magnitudes 8, 25 and 43, common to the IQ2 formats.
struct IQ2 {
    static constexpr int kLow = 2, kHigh = 1, kOffset = 43, kDotBits = 7;
    static constexpr float kFactor = 0.125f;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr uint8_t kTable[16] = {0, 18, 35, 51, 68, 86};
    // Stores the point `index` of the codebook with eight signs.
    static void put(const uint8_t* codebook, unsigned index, unsigned signs, uint8_t* u) {
        signed_group([&](int i) { return codebook[index * 8 + static_cast<unsigned>(i)]; }, signs, 3, u);
    }
};

struct IQ2_XXS : IQ2 {
    static constexpr int kSourceBytes = 66, kSub = 32, kCodebook = 256 * 8;
    static constexpr const char* kName = "IQ2_XXS";
    static void read(const uint8_t* b, const uint8_t* codebook, Source& out) {
        out.d = half_at(b);
        for (int sub = 0; sub < 8; ++sub) {
            const uint8_t* index = b + 2 + sub * 8;
            const uint32_t word = word_at(index + 4);  // 4 x 7 sign bits, scale
            out.scale[sub] = static_cast<int8_t>((word >> 28) * 2 + 1);
            for (int group = 0; group < 4; ++group)
                put(codebook, index[group], even_signs(word >> (7 * group) & 127),
                    out.u + sub * 32 + group * 8);
        }
    }
};

struct IQ2_XS : IQ2 {
    static constexpr int kSourceBytes = 74, kSub = 16, kCodebook = 512 * 8;
    static constexpr const char* kName = "IQ2_XS";
    static void read(const uint8_t* b, const uint8_t* codebook, Source& out) {
        out.d = half_at(b);
        for (int i = 0; i < 16; ++i) out.scale[i] = odd_scale(b + 66, i);
        for (int group = 0; group < 32; ++group) {
            const unsigned word = half_at(b + 2 + group * 2);  // 9 bits of index, 7 sign bits
            put(codebook, word & 511, even_signs(word >> 9), out.u + group * 8);
        }
    }
};

struct IQ2_S : IQ2 {
    static constexpr int kSourceBytes = 82, kSub = 16, kCodebook = 1024 * 8;
    static constexpr const char* kName = "IQ2_S";
    static void read(const uint8_t* b, const uint8_t* codebook, Source& out) {
        const uint8_t *low = b + 2, *signs = b + 34, *high = b + 66;
        out.d = half_at(b);
        for (int i = 0; i < 16; ++i) out.scale[i] = odd_scale(b + 74, i);
        for (int group = 0; group < 32; ++group) {
            const unsigned index = low[group] | (high[group / 4] >> (group % 4 * 2) & 3u) << 8;
            put(codebook, index, signs[group], out.u + group * 8);
        }
    }
};

// -1, 0 or 1, with a shift of 1/8 up or down for a whole sub-block. The stored scale has the sign of the
// shift:
//   8 w = d * (8 |s| * (u - 1) + s)
struct IQ1_S {
    static constexpr int kSourceBytes = 50, kSub = 32, kLow = 2, kHigh = 0, kOffset = 1;
    static constexpr int kCodebook = 2048 * 8;
    static constexpr float kFactor = 0.125f;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "IQ1_S";
    static I16x32 scale(I16x32 s) { return shl<3>(abs(s)); }
    static I16x32 offset(I16x32 s) { return shl<3>(abs(s)) - s; }
    static void read(const uint8_t* b, const uint8_t* codebook, Source& out) {
        out.d = half_at(b);
        for (int sub = 0; sub < 8; ++sub) {
            const unsigned word = half_at(b + 34 + sub * 2);  // 4 x 3 high bits, scale, shift
            const int scale = static_cast<int>(word >> 12 & 7) * 2 + 1;
            out.scale[sub] = static_cast<int8_t>(word >> 15 ? -scale : scale);
            for (int group = 0; group < 4; ++group) {
                const unsigned index = b[2 + sub * 4 + group] | (word >> (3 * group) & 7) << 8;
                std::memcpy(out.u + sub * 32 + group * 8, codebook + index * 8, 8);
            }
        }
    }
};

// The points of IQ1_S with a shift for each group of eight. The table has 8 * {-1, 0, 1} - 1, then 8 * {-1,
// 0, 1} + 1, all plus 9.
struct IQ1_M {
    static constexpr int kSourceBytes = 56, kSub = 16, kLow = 2, kHigh = 1, kOffset = 9;
    static constexpr int kCodebook = 2048 * 8, kDotBits = 5;
    static constexpr float kFactor = 0.125f;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "IQ1_M";
    static constexpr uint8_t kTable[16] = {0, 8, 16, 2, 10, 18};
    static void read(const uint8_t* b, const uint8_t* codebook, Source& out) {
        const uint8_t *low = b, *high = b + 32, *scales = b + 48;
        out.d = 0;
        for (int i = 0; i < 4; ++i) {
            const unsigned word = half_at(scales + i * 2);  // 4 x 3-bit scales, a nibble of d
            out.d = static_cast<uint16_t>(out.d | word >> 12 << (4 * i));
            for (int j = 0; j < 4; ++j)
                out.scale[i * 4 + j] = static_cast<int8_t>((word >> (3 * j) & 7) * 2 + 1);
        }
        for (int group = 0; group < 32; ++group) {
            const unsigned nibble = high[group / 2] >> (group % 2 * 4) & 15u;
            const uint8_t* point = codebook + (low[group] | (nibble & 7) << 8) * 8;
            const int first = nibble & 8 ? 0 : 3;
            for (int i = 0; i < 8; ++i) out.u[group * 8 + i] = static_cast<uint8_t>(first + point[i]);
        }
    }
};

using All = FormatsOf<IQ4_XS, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_S, IQ1_M>;

}  // namespace

constinit const Formats iq_formats{All::plain};
#if defined(ZINC_HAS_AMX)
constinit const Formats iq_formats_amx{All::amx};
#endif

}  // namespace zinc::ZINC_LEVEL
