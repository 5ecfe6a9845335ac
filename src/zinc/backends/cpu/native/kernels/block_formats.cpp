// Formats whose blocks have 32 values, a float scale for each 32 or 16 of them, and perhaps an f16 minimum.
//
//   w = d * (u - offset)     or     w = d * u + m         (u may be an index into a table of sixteen)
//   y += (d * dx) * (u.x - offset * sum x);  y += m * (dx * sum x)
//
// Block of a tile: one chunk of Quants for 32 k. A longer block of the file is cut into such parts.
#include "amx.h"
#include "gemm.h"
#include "planes.h"
#include "weights.h"

namespace zinc::ZINC_LEVEL {
namespace {

struct Source {
    uint8_t u[32];
    uint16_t d[2], m;  // the second scale is that of the last sixteen values, if they have one
};

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
    static constexpr int kType = 2, kSourceBytes = 18, kLow = 4, kHigh = 0, kOffset = 8;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q4_0";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        read_nibbles(b + 2, out.u);
    }
};

struct Q4_1 {
    static constexpr int kType = 3, kSourceBytes = 20, kLow = 4, kHigh = 0, kOffset = 0;
    static constexpr bool kMins = true;
    static constexpr const char* kName = "Q4_1";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        out.m = half_at(b + 2);
        read_nibbles(b + 4, out.u);
    }
};

struct Q5_0 {
    static constexpr int kType = 6, kSourceBytes = 22, kLow = 4, kHigh = 1, kOffset = 16;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q5_0";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        read_nibbles(b + 6, out.u);
        read_fifth_bits(b + 2, out.u);
    }
};

struct Q5_1 {
    static constexpr int kType = 7, kSourceBytes = 24, kLow = 4, kHigh = 1, kOffset = 0;
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
    static constexpr int kType = 8, kSourceBytes = 34, kLow = 8, kHigh = 0, kOffset = kOffset8;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q8_0";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        for (int i = 0; i < 32; ++i) out.u[i] = static_cast<uint8_t>(b[2 + i] + kOffset8);
    }
};

// Indices into a table of value + kOffset8.
struct IQ4_NL {
    static constexpr int kType = 20, kSourceBytes = 18, kLow = 4, kHigh = 0, kOffset = kOffset8, kDotBits = 8;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "IQ4_NL";
    static constexpr auto kTable = kIQ4Values;
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = half_at(b);
        read_nibbles(b + 2, out.u);
    }
};

// One bit, -1 or 1, in blocks of 128: the same scale for each of its four parts.
struct Q1_0 {
    static constexpr int kType = 41, kSourceBytes = 18, kLow = 1, kHigh = 0, kOffset = 1, kDotBits = 2;
    static constexpr int kParts = 4;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q1_0";
    static constexpr uint8_t kTable[16] = {0, 2};
    static void read(const uint8_t* b, int part, Source& out) {
        out.d[0] = half_at(b);
        for (int i = 0; i < 32; ++i) out.u[i] = b[2 + part * 4 + i / 8] >> (i % 8) & 1;
    }
};

// Two bits, -1 to 2, in blocks of 64.
struct Q2_0 {
    static constexpr int kType = 42, kSourceBytes = 18, kLow = 2, kHigh = 0, kOffset = 1, kParts = 2;
    static constexpr bool kMins = false;
    static constexpr const char* kName = "Q2_0";
    static void read(const uint8_t* b, int part, Source& out) {
        out.d[0] = half_at(b);
        for (int i = 0; i < 32; ++i) out.u[i] = b[2 + part * 8 + i / 4] >> (i % 4 * 2) & 3;
    }
};

// 4-bit floats (E2M1), doubled to be whole: OCP Microscaling Formats 1.0, 5.3.3.
struct E2M1 {
    static constexpr int kLow = 4, kHigh = 0, kOffset = 12, kDotBits = 5;
    static constexpr bool kMins = false;
    static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

// Sixteen of them under a scale that is an unsigned E4M3 float, in blocks of 64.
struct NVFP4 : E2M1 {
    static constexpr int kType = 40, kSourceBytes = 36, kSub = 16, kParts = 2;
    static constexpr const char* kName = "NVFP4";
    static void read(const uint8_t* b, int part, Source& out) {
        for (int half = 0; half < 2; ++half) {
            const int group = part * 2 + half;
            out.d[half] = b[group] == 0x7f ? 0 : b[group] & 0x7f;  // NaN reads as 0, a sign is ignored
            for (int i = 0; i < 8; ++i) {
                out.u[half * 16 + i] = b[4 + group * 8 + i] & 15;
                out.u[half * 16 + 8 + i] = b[4 + group * 8 + i] >> 4;
            }
        }
    }
    // A byte a row, as in the file: the tile's scales instead of halves.
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

// Thirty-two of them under a power of two: the same, 5.4.
struct MXFP4 : E2M1 {
    static constexpr int kType = 39, kSourceBytes = 17;
    static constexpr const char* kName = "MXFP4";
    static void read(const uint8_t* b, Source& out) {
        out.d[0] = b[0];
        read_nibbles(b + 1, out.u);
    }
    // A byte a row, 128 less than the exponent of twice the scale: the tile's scales instead of halves.
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

template <class F>
struct BlockTile {
    using Chunk = Quants<F::kLow, F::kHigh, 8>;
    using Head = typename HeadOf<F>::type;
    static constexpr int kDotBits = dot_bits<F>();
    using Dot = Dot4<kDotBits>;
    // Values under a scale, and parts of 32 in a block of the file.
    static constexpr int kSub = [] {
        if constexpr (requires { F::kSub; }) return F::kSub;
        return 32;
    }();
    static constexpr int kParts = [] {
        if constexpr (requires { F::kParts; }) return F::kParts;
        return 1;
    }();
    static constexpr int kSubs = 32 / kSub;
    static_assert(!F::kMins || kSubs == 1);

    int64_t blocks;
    Head head;
    explicit BlockTile(int64_t cols) : blocks(cols / 32), head(cols / kSub) {}
    template <int g>
    static U8x64 get(const std::byte* chunk) {
        return looked_up<F>(Chunk::template get<g>(chunk));
    }
    int64_t blocks_at() const { return head.part * (F::kMins ? 2 : 1); }
    int64_t bytes() const { return blocks_at() + blocks * Chunk::kBytes; }
    static int64_t bytes_of(int64_t cols) { return BlockTile(cols).bytes(); }
};

template <class F>
void pack(const std::byte* const* rows, int64_t cols, const uint8_t*, std::byte* tile) {
    using T = BlockTile<F>;
    const T t(cols);
    std::memset(tile, 0, static_cast<size_t>(t.bytes()));
    std::byte* chunk = tile + t.blocks_at();
    for (int64_t b = 0; b < t.blocks; ++b, chunk += T::Chunk::kBytes) {
        for (int row = 0; row < kTileRows; ++row) {
            if (!rows[row]) continue;
            const auto* from = reinterpret_cast<const uint8_t*>(rows[row]) + b / T::kParts * F::kSourceBytes;
            Source s;
            if constexpr (T::kParts == 1) {
                F::read(from, s);
            } else {
                F::read(from, static_cast<int>(b % T::kParts), s);
            }
            for (int sub = 0; sub < T::kSubs; ++sub)
                t.head.put(tile, false, b * T::kSubs + sub, row, s.d[sub]);
            if constexpr (F::kMins) t.head.put(tile, true, b, row, s.m);
            for (int g = 0; g < 8; ++g) T::Chunk::put(chunk, g, row, s.u + g * 4);
        }
    }
}

struct Panel {  // eight blocks of 16 rows, fewer at the end
    alignas(64) uint8_t u[kPanel / 4][64];
    float d[16][16], m[8][16];  // d: by sub-block
};

// kLess: what is taken off the values.
template <class F, int kLess = 0>
void unpack(const std::byte* tile, const BlockTile<F>& t, int64_t first, int n_blocks, Panel& panel) {
    using T = BlockTile<F>;
    for (int b = 0; b < n_blocks; ++b) {
        const std::byte* chunk = tile + t.blocks_at() + (first + b) * T::Chunk::kBytes;
        for (int sub = 0; sub < T::kSubs; ++sub)
            t.head.d(tile, (first + b) * T::kSubs + sub).store(panel.d[b * T::kSubs + sub]);
        if constexpr (F::kMins) t.head.m(tile, first + b).store(panel.m[b]);
        unroll<8>([&](auto g) {
            auto u = T::template get<g>(chunk);
            if constexpr (kLess != 0) u = u - decltype(u)::set1(kLess);
            u.store(panel.u[b * 8 + g]);
        });
    }
}

template <class F>
void decode(const std::byte* tile, int64_t cols, int lane, float* out) {
    using T = BlockTile<F>;
    const T t(cols);
    Panel p;
    for (int64_t b = 0; b < t.blocks; ++b) {
        unpack<F>(tile, t, b, 1, p);
        for (int k = 0; k < 32; ++k, ++out) {
            const uint8_t u = p.u[k / 4][lane * 4 + k % 4];
            const int value = T::kDotBits == 8 && F::kOffset == 0 ? static_cast<int8_t>(u) : u - F::kOffset;
            *out = p.d[k / T::kSub][lane] * static_cast<float>(value);
            if constexpr (F::kMins) *out += p.m[0][lane];
        }
    }
}

// What the offset takes off a sub-block's dot product. `sums`: the two of the block, of sixteen q each.
template <int kSub>
[[gnu::always_inline]] inline int32_t offset_part(int offset, const std::byte* sums, int sub) {
    int16_t pair[2];
    std::memcpy(pair, sums, 4);
    return -offset * (kSub == 32 ? pair[0] + pair[1] : pair[sub]);
}

// The float operations of a sub-block, in the one order there is.
template <bool kMins>
[[gnu::always_inline]] inline F32x16 add_block(F32x16 acc, F32x16 d, F32x16 m, I32x16 dot, float dx,
                                               float s) {
    acc = fma(d * F32x16::set1(dx), to_f32(dot), acc);
    if constexpr (kMins) acc = fma(m, F32x16::set1(s), acc);
    return acc;
}

template <class Dot, int kSub, bool kMins, int kTiles, int kRows>
void micro(const Panel* panels, int n_blocks, int offset, ActRows x, const Q8Row& row, int64_t first,
           float* out) {
    constexpr int kSubs = 32 / kSub, kGroups = kSub / 4;
    const int8_t* q[kRows];
    const std::byte* tail[kRows];
    repeat<kRows>([&](int t) {
        q[t] = reinterpret_cast<const int8_t*>(x[t]) + first * 32;
        tail[t] = x[t] + first * 4;
    });
    Sums<kTiles, kRows> acc;
    acc.load(out, first == 0);
    for (int b = 0; b < n_blocks; ++b) {
        unroll<kSubs>([&](auto sub) {
            I32x16 dot[kTiles][kRows];
            repeat<kRows>([&](int t) {
                const I32x16 start = I32x16::set1(offset_part<kSub>(offset, tail[t] + row.sum + b * 4, sub));
                repeat<kTiles>([&](int r) { dot[r][t] = start; });
            });
            const auto weights = [&](int r, auto g) {
                return U8x64::load(panels[r].u[b * 8 + sub * kGroups + g]);
            };
            dots<Dot, kGroups>(weights, q, b * 32 + sub * kSub, dot);
            repeat<kTiles>([&](int r) {
                const F32x16 d = F32x16::load(panels[r].d[b * kSubs + sub]), m = F32x16::load(panels[r].m[b]);
                repeat<kRows>([&](int t) {
                    const float dx = load_float(tail[t] + row.d + b * 4);
                    const float s = load_float(tail[t] + row.s + b * 4);
                    acc.v[r][t] = add_block<kMins>(acc.v[r][t], d, m, dot[r][t], dx, s);
                });
            });
        });
    }
    acc.store(out);
}

template <class Dot, int kSub, bool kMins>
[[gnu::noinline]] void multiply(const Panel* panels, int n_blocks, int offset, const TileMatmul& a,
                                int64_t first, AheadOfPanels& ahead) {
    const Q8Row row(Act::q8_32, a.cols);
    for_blocks(a.n_tiles, a.n, [&]<int kTiles, int kRows>(int tile, int t) {
        ahead.step();
        micro<Dot, kSub, kMins, kTiles, kRows>(panels + tile, n_blocks, offset, a.x + t, row, first,
                                               a.out + t * kOutStride + tile * 16);
    });
}

// A few rows against one tile: each block is unpacked in registers and never stored.
template <class F, int kRows>
[[gnu::noinline]] void few(const std::byte* tile, Following next, int64_t cols, ActRows x, float* out) {
    using T = BlockTile<F>;
    constexpr int kGroups = T::kSub / 4;
    const T tiles(cols);
    Ahead ahead(tile, tiles.bytes(), next, tiles.blocks);
    const Q8Row row(Act::q8_32, cols);
    const std::byte* chunk = tile + tiles.blocks_at();
    const int8_t* q[kRows];
    repeat<kRows>([&](int t) { q[t] = reinterpret_cast<const int8_t*>(x[t]); });
    F32x16 acc[kRows];
    repeat<kRows>([&](int t) { acc[t] = F32x16::zero(); });
    for (int64_t b = 0; b < tiles.blocks; ++b, chunk += T::Chunk::kBytes) {
        ahead.step();
        unroll<T::kSubs>([&](auto sub) __attribute__((always_inline)) {
            I32x16 dot[1][kRows];
            repeat<kRows>([&](int t) {
                dot[0][t] = I32x16::set1(offset_part<T::kSub>(F::kOffset, x[t] + row.sum + b * 4, sub));
            });
            const auto weights = [&](int, auto g) { return T::template get<sub * kGroups + g>(chunk); };
            dots<typename T::Dot, kGroups>(weights, q, b * 32 + sub * T::kSub, dot);
            const F32x16 d = tiles.head.d(tile, b * T::kSubs + sub);
            F32x16 m = F32x16::zero();
            if constexpr (F::kMins) m = tiles.head.m(tile, b);
            repeat<kRows>([&](int t) {
                acc[t] = add_block<F::kMins>(acc[t], d, m, dot[0][t], load_float(x[t] + row.d + b * 4),
                                             load_float(x[t] + row.s + b * 4));
            });
        });
    }
    repeat<kRows>([&](int t) { acc[t].store(out + t * kOutStride); });
}

#if defined(ZINC_HAS_AMX)

// The rows pass a panel in groups. Each meets all sub-blocks of the tiles, the products of kLag turns on
// their way before the first are stored, and then the sums are made floats. Values are signed here: the panel
// has them less their offset.
template <int kSub, bool kMins, int kTiles>
[[gnu::noinline]] void multiply(const Panel* panels, int n_blocks, const TileMatmul& a, int64_t first,
                                const tmul::RowGroups& groups, AheadOfPanels& ahead) {
    constexpr int kSubs = 32 / kSub, kTurns = 4 / kTiles, kLag = kTurns - 1;
    const Q8Row row(Act::q8_32, a.cols);
    const int n_subs = n_blocks * kSubs;
    tmul::Sums dots[kTiles][8 * kSubs] = {};
    float d[tmul::kMaxRows][8] = {}, s[tmul::kMaxRows][8] = {};  // of the group's rows, by block
    for (int group = 0; group < groups.count; ++group) {
        ahead.step();
        const int start = groups.start(group);
        const ActRows x = a.x + start;
        for (int i = 0; i < groups.rows; ++i) {
            std::memcpy(d[i], x[i] + row.d + first * 4, sizeof d[i]);
            if constexpr (kMins) std::memcpy(s[i], x[i] + row.s + first * 4, sizeof s[i]);
        }
        for (int sub = 0; sub < n_subs + kLag; sub += kTurns) {
            unroll<kTurns>([&](auto j) {
                constexpr int kOldest = (j + 1) % kTurns, kX = tmul::kX + j % 2;
                if (sub + j < n_subs) {
                    tmul::load<kX>(x.data + first * 32 + (sub + j) * kSub, x.stride);
                    unroll<kTiles>([&](auto r) {
                        constexpr int kSums = j * kTiles + r, kW = tmul::kWeights + kSums % 2;
                        tmul::zero<kSums>();
                        tmul::load<kW>(panels[r].u[(sub + j) * (kSub / 4)], 64);
                        tmul::multiply<kSums, kX, kW, true>();
                    });
                }
                if (sub + j >= kLag && sub + j < n_subs + kLag)
                    unroll<kTiles>(
                        [&](auto r) { tmul::store<kOldest * kTiles + r>(&dots[r][sub + j - kLag]); });
            });
        }
        for (int r = 0; r < kTiles; ++r) {
            const Panel& panel = panels[r];
            float* out = a.out + start * kOutStride + r * 16;
            F32x16 acc[tmul::kMaxRows];
            unroll<tmul::kMaxRows>([&](auto i) {
                acc[i] = first > 0 && i < groups.rows ? F32x16::load(out + i * kOutStride) : F32x16::zero();
            });
            for (int b = 0; b < n_blocks; ++b) {
                unroll<kSubs>([&](auto sub) {
                    const tmul::Sums& from = dots[r][b * kSubs + sub];
                    const F32x16 scale = F32x16::load(panel.d[b * kSubs + sub]), m = F32x16::load(panel.m[b]);
                    unroll<tmul::kMaxRows>([&](auto i) {
                        acc[i] =
                            add_block<kMins>(acc[i], scale, m, I32x16::load(from.row[i]), d[i][b], s[i][b]);
                    });
                });
            }
            unroll<tmul::kMaxRows>([&](auto i) {
                if (i >= groups.repeated(group) && i < groups.rows) acc[i].store(out + i * kOutStride);
            });
        }
    }
}

#endif

// The product, if its rows are few.
template <class F>
bool matmul_few(const TileMatmul& a) {
    return multiply_few(a, BlockTile<F>::bytes_of(a.cols),
                        [&]<int kRows>(const std::byte* tile, Following next, ActRows x, float* out) {
                            few<F, kRows>(tile, next, a.cols, x, out);
                        });
}

template <class F>
void matmul(const TileMatmul& a) {
    if (matmul_few<F>(a)) return;
    using T = BlockTile<F>;
    const T tiles(a.cols);
    AheadOfPanels ahead(a, tiles.bytes(), (tiles.blocks + 7) / 8 * register_blocks(a));
    Panel panels[2];
    for (int64_t b = 0; b < tiles.blocks; b += 8) {
        const int n = static_cast<int>(tiles.blocks - b < 8 ? tiles.blocks - b : 8);
        for (int r = 0; r < a.n_tiles; ++r) unpack<F>(a.tile[r], tiles, b, n, panels[r]);
        multiply<typename T::Dot, T::kSub, F::kMins>(panels, n, F::kOffset, a, b, ahead);
    }
}

#if defined(ZINC_HAS_AMX)
template <class F>
void matmul_amx(const TileMatmul& a) {
    if (matmul_few<F>(a)) return;
    using T = BlockTile<F>;
    const T tiles(a.cols);
    const tmul::RowGroups groups(a.n);
    const tmul::Registers registers(groups.rows, T::kSub);
    AheadOfPanels ahead(a, tiles.bytes(), (tiles.blocks + 7) / 8 * groups.count);
    Panel panels[2];
    for (int64_t b = 0; b < tiles.blocks; b += 8) {
        const int n = static_cast<int>(tiles.blocks - b < 8 ? tiles.blocks - b : 8);
        for (int r = 0; r < a.n_tiles; ++r) unpack<F, F::kOffset>(a.tile[r], tiles, b, n, panels[r]);
        if (a.n_tiles == 2) {
            multiply<T::kSub, F::kMins, 2>(panels, n, a, b, groups, ahead);
        } else {
            multiply<T::kSub, F::kMins, 1>(panels, n, a, b, groups, ahead);
        }
    }
}
#endif

template <class F>
constexpr WeightFormat kFormat{
    F::kType, F::kName,  Act::q8_32, 32 * BlockTile<F>::kParts, F::kSourceBytes, 0, BlockTile<F>::bytes_of,
    pack<F>,  decode<F>, matmul<F>};
#if defined(ZINC_HAS_AMX)
template <class F>
constexpr WeightFormat kFormatAmx = tmul::with(kFormat<F>, matmul_amx<F>);
#endif

}  // namespace

constinit const WeightFormat q4_0_format = kFormat<Q4_0>;
constinit const WeightFormat q4_1_format = kFormat<Q4_1>;
constinit const WeightFormat q5_0_format = kFormat<Q5_0>;
constinit const WeightFormat q5_1_format = kFormat<Q5_1>;
constinit const WeightFormat q8_0_format = kFormat<Q8_0>;
constinit const WeightFormat iq4_nl_format = kFormat<IQ4_NL>;
constinit const WeightFormat mxfp4_format = kFormat<MXFP4>;
constinit const WeightFormat nvfp4_format = kFormat<NVFP4>;
constinit const WeightFormat q1_0_format = kFormat<Q1_0>;
constinit const WeightFormat q2_0_format = kFormat<Q2_0>;

#if defined(ZINC_HAS_AMX)
constinit const WeightFormat q4_0_format_amx = kFormatAmx<Q4_0>;
constinit const WeightFormat q4_1_format_amx = kFormatAmx<Q4_1>;
constinit const WeightFormat q5_0_format_amx = kFormatAmx<Q5_0>;
constinit const WeightFormat q5_1_format_amx = kFormatAmx<Q5_1>;
constinit const WeightFormat q8_0_format_amx = kFormatAmx<Q8_0>;
constinit const WeightFormat iq4_nl_format_amx = kFormatAmx<IQ4_NL>;
constinit const WeightFormat mxfp4_format_amx = kFormatAmx<MXFP4>;
constinit const WeightFormat nvfp4_format_amx = kFormatAmx<NVFP4>;
constinit const WeightFormat q1_0_format_amx = kFormatAmx<Q1_0>;
constinit const WeightFormat q2_0_format_amx = kFormatAmx<Q2_0>;
#endif

}  // namespace zinc::ZINC_LEVEL
