// K-quants and ternary formats: values of 2 to 6 bits in blocks of 256 (k_tile.h).
#include "k_tile.h"
#include "k_tile_amx.h"

namespace zinc::ZINC_LEVEL {
namespace {

using namespace k_tile;

// Reads 64 bytes of 2-bit values: bits 2 p and 2 p + 1 of byte 32 h + i are value 128 h + 32 p + i.
void read_pairs_of_bits(const uint8_t* b, uint8_t* u) {
    for (int half = 0; half < 2; ++half)
        for (int part = 0; part < 4; ++part)
            for (int i = 0; i < 32; ++i) u[half * 128 + part * 32 + i] = b[half * 32 + i] >> (2 * part) & 3;
}

// Reads the eight 6-bit scales and eight 6-bit minimums of Q4_K and Q5_K from twelve bytes.
void read_scales(const uint8_t* s, Source& out) {
    for (int i = 0; i < 4; ++i) {
        out.scale[i] = static_cast<int8_t>(s[i] & 63);
        out.min[i] = static_cast<int8_t>(s[i + 4] & 63);
        out.scale[i + 4] = static_cast<int8_t>((s[i + 8] & 15) | s[i] >> 6 << 4);
        out.min[i + 4] = static_cast<int8_t>(s[i + 8] >> 4 | s[i + 4] >> 6 << 4);
    }
}

struct Q2_K {
    static constexpr int kSourceBytes = 84, kSub = 16, kLow = 2, kHigh = 0, kOffset = 0, kMaxScale = 15;
    static constexpr bool kMins = true;
    static constexpr Scales kScales = Scales::nibbles;
    static constexpr const char* kName = "Q2_K";
    static void read(const uint8_t* b, Source& out) {
        for (int i = 0; i < 16; ++i) {
            out.scale[i] = static_cast<int8_t>(b[i] & 15);
            out.min[i] = static_cast<int8_t>(b[i] >> 4);
        }
        read_pairs_of_bits(b + 16, out.u);
        out.d = half_at(b + 80);
        out.dmin = half_at(b + 82);
    }
};

struct Q3_K {
    static constexpr int kSourceBytes = 110, kSub = 16, kLow = 2, kHigh = 1, kOffset = 4;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "Q3_K";
    static void read(const uint8_t* b, Source& out) {
        const uint8_t *high = b, *low = b + 32, *s = b + 96;
        for (int half = 0; half < 2; ++half)
            for (int part = 0; part < 4; ++part)
                for (int i = 0; i < 32; ++i)
                    out.u[half * 128 + part * 32 + i] = static_cast<uint8_t>(
                        (low[half * 32 + i] >> (2 * part) & 3) | (high[i] >> (half * 4 + part) & 1) << 2);
        for (int i = 0; i < 16; ++i) {
            const int four = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
            out.scale[i] = static_cast<int8_t>((four | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32);
        }
        out.d = half_at(b + 108);
    }
};

struct Q4_K {
    static constexpr int kSourceBytes = 144, kSub = 32, kLow = 4, kHigh = 0, kOffset = 0, kMaxScale = 63;
    static constexpr bool kMins = true;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "Q4_K";
    static void read(const uint8_t* b, Source& out) {
        out.d = half_at(b);
        out.dmin = half_at(b + 2);
        read_scales(b + 4, out);
        for (int chunk = 0; chunk < 4; ++chunk)
            for (int i = 0; i < 32; ++i) {
                out.u[chunk * 64 + i] = b[16 + chunk * 32 + i] & 15;
                out.u[chunk * 64 + 32 + i] = b[16 + chunk * 32 + i] >> 4;
            }
    }
};

struct Q5_K {
    static constexpr int kSourceBytes = 176, kSub = 32, kLow = 4, kHigh = 1, kOffset = 0;
    static constexpr bool kMins = true;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "Q5_K";
    static void read(const uint8_t* b, Source& out) {
        out.d = half_at(b);
        out.dmin = half_at(b + 2);
        read_scales(b + 4, out);
        const uint8_t *high = b + 16, *low = b + 48;
        for (int chunk = 0; chunk < 4; ++chunk)
            for (int i = 0; i < 32; ++i) {
                const int bits = high[i] >> (2 * chunk), q = low[chunk * 32 + i];
                out.u[chunk * 64 + i] = static_cast<uint8_t>((q & 15) | (bits & 1) << 4);
                out.u[chunk * 64 + 32 + i] = static_cast<uint8_t>(q >> 4 | (bits >> 1 & 1) << 4);
            }
    }
};

struct Q6_K {
    static constexpr int kSourceBytes = 210, kSub = 16, kLow = 4, kHigh = 2, kOffset = 32;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::bytes;
    static constexpr const char* kName = "Q6_K";
    static void read(const uint8_t* b, Source& out) {
        for (int half = 0; half < 2; ++half) {
            const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
            uint8_t* u = out.u + half * 128;
            for (int i = 0; i < 32; ++i) {
                u[i] = static_cast<uint8_t>((low[i] & 15) | (high[i] & 3) << 4);
                u[i + 32] = static_cast<uint8_t>((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
                u[i + 64] = static_cast<uint8_t>(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
                u[i + 96] = static_cast<uint8_t>(low[i + 32] >> 4 | high[i] >> 6 << 4);
            }
        }
        std::memcpy(out.scale, b + 192, 16);
        out.d = half_at(b + 208);
    }
};

// Ternary: -1, 0 or 1 times the scale of the block. The file has five digits in a byte; a tile has two bits
// for each digit. That takes 22% more memory, but unpacking is a shift and a mask instead of a multiplication
// by a power of 3.
struct TQ1_0 {
    static constexpr int kSourceBytes = 54, kSub = 32, kLow = 2, kHigh = 0, kOffset = 1;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::none;
    static constexpr const char* kName = "TQ1_0";
    // A byte is a fraction (of 256) in base 3 with its highest digit first. Digit d of byte i is element d *
    // step + i.
    static void digits(const uint8_t* bytes, int step, int n_digits, uint8_t* u) {
        for (int i = 0; i < step; ++i) {
            uint8_t fraction = bytes[i];
            for (int digit = 0; digit < n_digits; ++digit) {
                u[digit * step + i] = static_cast<uint8_t>(fraction * 3 >> 8);
                fraction = static_cast<uint8_t>(fraction * 3);
            }
        }
    }
    static void read(const uint8_t* b, Source& out) {
        digits(b, 32, 5, out.u);
        digits(b + 32, 16, 5, out.u + 160);
        digits(b + 48, 4, 4, out.u + 240);
        out.d = half_at(b + 52);
    }
};

struct TQ2_0 {
    static constexpr int kSourceBytes = 66, kSub = 32, kLow = 2, kHigh = 0, kOffset = 1;
    static constexpr bool kMins = false;
    static constexpr Scales kScales = Scales::none;
    static constexpr const char* kName = "TQ2_0";
    static void read(const uint8_t* b, Source& out) {
        read_pairs_of_bits(b, out.u);
        out.d = half_at(b + 64);
    }
};

using All = FormatsOf<Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TQ1_0, TQ2_0>;

}  // namespace

constinit const Formats k_formats{All::plain};
#if defined(ZINC_HAS_AMX)
constinit const Formats k_formats_amx{All::amx};
#endif

}  // namespace zinc::ZINC_LEVEL
