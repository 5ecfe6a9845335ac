// The formats with blocks of 32 values (block_tile.h): the Q4_0 family, IQ4_NL and 4-bit floats. A snippet
// names the sizes of a format and reads one block, or one part of 32 values of a longer block, of the file.
#include "block_tile.h"
#include "block_tile_amx.h"

namespace zinc::ZINC_LEVEL {
namespace {

using namespace block_tile;

inline void read_nibbles(const uint8_t* low, uint8_t* u) {
    for (int i = 0; i < 16; ++i) {
        u[i] = low[i] & 15;
        u[i + 16] = low[i] >> 4;
    }
}

inline void read_fifth_bits(const uint8_t* high, uint8_t* u) {
    for (int i = 0; i < 32; ++i) u[i] = static_cast<uint8_t>(u[i] | (high[i / 8] >> (i % 8) & 1) << 4);
}

struct Q4_0 {
    static constexpr int kSourceBytes = 18, kLow = 4, kHigh = 0, kOffset = 8;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q4_0";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        read_nibbles(b + 2, out.u);
    }
};

struct Q4_1 {
    static constexpr int kSourceBytes = 20, kLow = 4, kHigh = 0, kOffset = 0;
    static constexpr bool kMins = true;
    static constexpr const char* kName = "Q4_1";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        out.m = half_at(b + 2);
        read_nibbles(b + 4, out.u);
    }
};

struct Q5_0 {
    static constexpr int kSourceBytes = 22, kLow = 4, kHigh = 1, kOffset = 16;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q5_0";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        read_nibbles(b + 6, out.u);
        read_fifth_bits(b + 2, out.u);
    }
};

struct Q5_1 {
    static constexpr int kSourceBytes = 24, kLow = 4, kHigh = 1, kOffset = 0;
    static constexpr bool kMins = true;
    static constexpr const char* kName = "Q5_1";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        out.m = half_at(b + 2);
        read_nibbles(b + 8, out.u);
        read_fifth_bits(b + 4, out.u);
    }
};

struct Q8_0 {
    static constexpr int kSourceBytes = 34, kLow = 8, kHigh = 0, kOffset = kOffset8;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q8_0";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        for (int i = 0; i < 32; ++i) out.u[i] = static_cast<uint8_t>(b[2 + i] + kOffset8);
    }
};

// 4-bit indices into a table of values, stored plus kOffset8.
struct IQ4_NL {
    static constexpr int kSourceBytes = 18, kLow = 4, kHigh = 0, kOffset = kOffset8, kDotBits = 8;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "IQ4_NL";
    static constexpr auto kTable = kIQ4Values;
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        read_nibbles(b + 2, out.u);
    }
};

// One bit, -1 or 1, in blocks of 128 with one scale. The four parts of a block have the same scale.
struct Q1_0 {
    static constexpr int kSourceBytes = 18, kLow = 1, kHigh = 0, kOffset = 1, kDotBits = 2;
    static constexpr int kParts = 4;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q1_0";
    static constexpr uint8_t kTable[16] = {0, 2};
    static void read(const uint8_t* b, int part, Source& out) {
        out.d[0] = half_at(b);
        for (int i = 0; i < 32; ++i) out.u[i] = b[2 + part * 4 + i / 8] >> (i % 8) & 1;
    }
};

// Two bits, -1 to 2, in blocks of 64 with one scale.
struct Q2_0 {
    static constexpr int kSourceBytes = 18, kLow = 2, kHigh = 0, kOffset = 1, kParts = 2;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q2_0";
    static void read(const uint8_t* b, int part, Source& out) {
        out.d[0] = half_at(b);
        for (int i = 0; i < 32; ++i) out.u[i] = b[2 + part * 8 + i / 4] >> (i % 4 * 2) & 3;
    }
};

// 4-bit floats (E2M1), doubled to make them integers: OCP Microscaling Formats 1.0, section 5.3.3.
struct E2M1 {
    static constexpr int kLow = 4, kHigh = 0, kOffset = 12, kDotBits = 5;
    static constexpr bool kMins = false;
    static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

// Sixteen E2M1 values share a scale, an unsigned E4M3 float, in blocks of 64.
struct NVFP4 : E2M1 {
    static constexpr int kSourceBytes = 36, kSub = 16, kParts = 2;
    static constexpr const char* kName = "NVFP4";
    static void read(const uint8_t* b, int part, Source& out) {
        for (int half = 0; half < 2; ++half) {
            const int group = part * 2 + half;
            out.d[half] = b[group] == 0x7f ? 0 : b[group] & 0x7f;  // NaN is read as 0; the sign is ignored
            for (int i = 0; i < 8; ++i) {
                out.u[half * 16 + i] = b[4 + group * 8 + i] & 15;
                out.u[half * 16 + 8 + i] = b[4 + group * 8 + i] >> 4;
            }
        }
    }
    // Scales of a tile: one byte per row, as in the file, instead of f16.
    struct Head {
        int64_t part;
        explicit Head(int64_t n_scales) : part(align64(n_scales * 16)) {}
        static F32x16 d(const std::byte* tile, int64_t i) {  // half the scale, for values are doubled
            return F32x16::load_e4m3(reinterpret_cast<const uint8_t*>(tile) + i * 16) * F32x16::set1(128.0f);
        }
        static void put(std::byte* tile, bool, int64_t i, int row, uint16_t code) {
            tile[i * 16 + row] = static_cast<std::byte>(code);
        }
    };
};

// 32 E2M1 values share a scale, a power of two: OCP Microscaling Formats 1.0, section 5.4.
struct MXFP4 : E2M1 {
    static constexpr int kSourceBytes = 17;
    static constexpr const char* kName = "MXFP4";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = b[0];
        read_nibbles(b + 1, out.u);
    }
    // Scales of a tile: one byte per row instead of f16, the exponent of twice the scale, minus 128.
    struct Head {
        int64_t part;
        explicit Head(int64_t n_blocks) : part(align64(n_blocks * 16)) {}
        static F32x16 d(const std::byte* tile, int64_t block) {
            return ldexp(F32x16::set1(1.0f),
                         F32x16::load_i8(reinterpret_cast<const int8_t*>(tile) + block * 16));
        }
        static void put(std::byte* tile, bool, int64_t block, int row, uint16_t exponent) {
            tile[block * 16 + row] = static_cast<std::byte>(exponent - 128);
        }
    };
};

using All = FormatsOf<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, NVFP4, Q1_0, Q2_0>;

}  // namespace

constinit const Formats block_formats{All::plain};
#if defined(ZINC_HAS_AMX)
constinit const Formats block_formats_amx{All::amx};
#endif

}  // namespace zinc::ZINC_LEVEL
