// The contract between the program (program.h) and the kernels (kernels/*.cpp).
//
// A program is a list of launches. A launch names one kernel and its operands; the kernel says into how
// many independent chunks the launch falls for this batch and runs one of them. Chunks are claimed by the
// threads of the pool in any order, so a chunk must write only what is its own. The order of the float
// operations that lead to one output value must depend on its row alone: never on the number of tokens in
// the batch, on the chunk, or on the number of threads (batch invariance).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zinc {

// How the rows of an activation are stored in the arena. Quantised rows are laid out by Q8Row.
enum class Act : uint8_t { f32, q8_32, q8_256, bf16 };

// Zeroed bytes that free themselves, aligned to a page. Large ones are committed by the system as they are
// touched, in huge pages where it has them, so that a cache for a long context costs what is used of it.
// Throws std::bad_alloc.
struct Bytes {
    std::byte* data = nullptr;
    size_t size = 0;
    Bytes() = default;
    bool in_slab = false;
    explicit Bytes(size_t n);
    // For what lives as long as a model: pieces of any size share huge pages, which go when the last of them
    // is freed.
    static Bytes lasting(size_t n);
    ~Bytes();
    Bytes(Bytes&& o) noexcept
        : data(std::exchange(o.data, nullptr)),
          size(std::exchange(o.size, 0)),
          in_slab(std::exchange(o.in_slab, false)) {}
    Bytes& operator=(Bytes&& o) noexcept {
        std::swap(data, o.data);
        std::swap(size, o.size);
        std::swap(in_slab, o.in_slab);
        return *this;
    }
};

// Whether the first-level data cache has 48 KiB or more, as far as the system says.
extern const bool has_roomy_first_level;

// Whether memory delivers faster when lines of several pages are asked for in turn, as Intel's does: there
// the hardware's prefetcher follows one page only so far, but many pages at once (dev/kernels has the rates).
extern const bool wants_pages_in_turn;

// What to ask for while the line at `p` is read: the lines of the next pages, one of each in turn.
template <uintptr_t kPages>
[[gnu::always_inline]] inline const std::byte* in_turn(const std::byte* p) {
    constexpr uintptr_t kPage = 4096, kAll = kPages * kPage;
    const auto at = reinterpret_cast<uintptr_t>(p), line = at % kAll / 64;
    return p - at % kAll + kAll + line % kPages * kPage + line / kPages * 64;
}

struct WeightFormat;

// A weight in the layout the kernels read (planes.h describes the tiles): `planes` matrices (experts; 1 for
// a dense weight) of `rows` x `cols`, each cut into tiles of 16 rows. A vector (norm weight, bias) is plain
// f32.
struct PackedTensor {
    const WeightFormat* format = nullptr;  // null: a vector of `cols` floats
    int64_t planes = 1, rows = 0, cols = 0;
    int64_t tile_bytes = 0, plane_bytes = 0;
    Bytes bytes;
    const std::byte* tile(int64_t plane, int64_t tile) const {
        return bytes.data + plane * plane_bytes + tile * tile_bytes;
    }
    const float* vector() const { return reinterpret_cast<const float*>(bytes.data); }
};
inline constexpr int kTileRows = 16;

// Keys and values of one layer, in blocks of `block_tokens` positions. `group` picks the block table of the
// batch: layers that keep everything and layers that keep a window have different tables.
//   K  [block][head][tile of 16 positions][head_dim][16]      lanes = positions, so q.K needs no
//   transposition V  [block][head][position][head_dim_v]                    lanes = dimensions
// f16; q8_0 and q4_0: about the same order in integers with one f16 scale per 32 dimensions
// (kernels/kv_layout.h).
enum class KvType : uint8_t { f16, q8_0, q4_0 };
struct KVLayer {
    int group = 0;
    int n_blocks = 0, block_tokens = 0, n_heads = 0, head_dim = 0, head_dim_v = 0;
    KvType type = KvType::f16;
    bool v_from_k = false;  // values are the last head_dim_v dimensions of the keys, and v is empty
    Bytes k, v;
};

// Recurrent state of one layer: `slots` x `floats_per_slot` f32.
struct StateLayer {
    int64_t slots = 0, floats_per_slot = 0;
    Bytes bytes;
};

struct Operand {
    Act act = Act::f32;         // rows in the arena: how they are stored,
    int32_t cols = 0;           //   elements a row,
    int64_t stride = 0;         //   bytes from row to row (0: one row, whatever the launch has rows for),
    int64_t room = 0;           //   how many rows the arena has room for from here,
    std::byte* data = nullptr;  //   first byte; null when the operand is absent or no rows
    const PackedTensor* tensor = nullptr;
    KVLayer* kv = nullptr;
    StateLayer* state = nullptr;

    explicit operator bool() const { return data || tensor || kv || state; }
    template <class T = float>
    T* row(int64_t r) const {
        return reinterpret_cast<T*>(data + r * stride);
    }
};

// What changes from step to step. Tokens of one sequence are adjacent and in order of position.
struct Batch {
    int32_t n_tokens = 0, n_outputs = 0, n_sequences = 0;
    const int32_t* ids = nullptr;          // [n_tokens]
    const int32_t* positions = nullptr;    // [n_tokens]
    const int32_t* sequence = nullptr;     // [n_tokens] index of the sequence in this batch
    const int32_t* output_rows = nullptr;  // [n_outputs] token rows whose logits are wanted
    const int32_t* seq_start = nullptr;    // [n_sequences + 1] first token row of each sequence
    const int32_t* state_slot = nullptr;   // [n_sequences]
    struct Table {
        const int32_t* blocks =
            nullptr;  // [n_sequences][stride] block of each block_tokens positions, -1 = freed
        int64_t stride = 0;
    };
    std::vector<Table> tables;  // by KVLayer::group
};

// Rows of a launch: how many rows its outputs have.
enum class Dim : uint8_t { constant, tokens, outputs, sequences };

// Named numbers of a launch (eps, n_heads, ...), read once in Kernel::prepare.
struct Attrs {
    std::vector<std::pair<std::string, double>> items;
    double get(std::string_view name) const;  // throws std::invalid_argument when absent
    double get(std::string_view name, double fallback) const;
};

struct Launch;

// Scratch of one thread: grows once, never shrinks.
struct Scratch {
    Bytes bytes;
    int thread = 0;
    template <class T = float>
    T* get(size_t count) {
        if (bytes.size < count * sizeof(T)) bytes = Bytes(count * sizeof(T) * 3 / 2);
        return reinterpret_cast<T*>(bytes.data);
    }
};

struct Kernel {
    const char* name;
    // Checks operands, reads attrs into launch.params; throws std::invalid_argument with a clear text.
    void (*prepare)(Launch&, const Attrs&);
    int (*chunks)(const Launch&, const Batch&, int n_threads);
    void (*run)(const Launch&, const Batch&, int chunk, Scratch&);
};

struct Launch {
    const Kernel* kernel = nullptr;
    Dim dim = Dim::tokens;
    int32_t constant_rows = 0;
    std::vector<Operand> in, out;  // in/out as the op's signature lists them; absent ones are empty
    int n_threads = 1;
    alignas(16) std::byte params[128] = {};
    // State shared by the chunks of a launch (counters, expert lists); kernels size it in prepare or chunks.
    mutable Bytes shared;
    // Scratch shared by all launches of a program: what is in it lasts for one launch. Only chunks() may grow
    // it; the chunks() of a step are all called before its first launch runs, by one thread.
    Bytes* common = nullptr;

    int rows(const Batch& b) const {
        switch (dim) {
            case Dim::tokens: return b.n_tokens;
            case Dim::outputs: return b.n_outputs;
            case Dim::sequences: return b.n_sequences;
            default: return constant_rows;
        }
    }
    template <class P>
    P& as() {
        static_assert(sizeof(P) <= sizeof(params) && std::is_trivially_copyable_v<P>);
        return *reinterpret_cast<P*>(params);
    }
    template <class P>
    const P& as() const {
        return *reinterpret_cast<const P*>(params);
    }
};

// Rows of activations at equal distances, in WeightFormat::activation.
struct ActRows {
    const std::byte* data = nullptr;
    int64_t stride = 0;
    const std::byte* operator[](int64_t row) const { return data + row * stride; }
    ActRows operator+(int64_t row) const { return {data + row * stride, stride}; }
};

// Up to two tiles of 16 rows times n activation rows: out[t][16 r + lane] = sum_k tile[r][lane][k] x[t][k].
// Each value is summed in an order that depends on cols alone.
struct TileMatmul {
    const std::byte* tile[2] = {};
    int n_tiles = 1;
    int64_t cols = 0;
    ActRows x;
    int n = 0;
    float* out = nullptr;  // [n][kOutStride]
    // The tiles that will be read after these, in their places; null: what lies behind them.
    const std::byte* next[2] = {};
    // What the caller does next with each of the n rows: that many lines of 64 bytes, which a format may ask
    // for ahead.
    struct Soon {
        ActRows rows;
        int lines = 0;
    };
    Soon soon[2] = {};
};
inline constexpr int kOutStride = 2 * kTileRows;

// A block format of a SIMD level: one snippet in *_formats.cpp makes one of these.
struct WeightFormat {
    int ggml_type;
    const char* name;
    Act activation;
    int block;           // cols must be a multiple of it
    int source_bytes;    // a block in the file
    int codebook_bytes;  // digits of the points that the file's indices name; 0: it has none
    int64_t (*tile_bytes)(int64_t cols);
    // rows: the 16 source rows of the tile; null behind the matrix' last row, packed as zeros.
    void (*pack)(const std::byte* const* rows, int64_t cols, const uint8_t* codebook, std::byte* tile);
    // One row of a tile back as floats, through the same snippet that the products use.
    void (*decode)(const std::byte* tile, int64_t cols, int lane, float* out);
    void (*matmul)(const TileMatmul&);
    int panel_rows = 512;  // rows that had better pass a tile at once: their sums stay in the cache
};

// What a SIMD level offers; kernels/table.cpp fills it.
struct Level {
    const char* name;
    const Kernel* const* kernels;
    size_t n_kernels;
    const WeightFormat* const* formats;  // ends with null
    // Multiply-adds of 8-bit integers at the level's peak rate, in registers: the roofline of prefill.
    // Returns their number.
    int64_t (*int8_peak)(int64_t iterations);

    const Kernel* kernel(std::string_view name) const {
        for (size_t i = 0; i < n_kernels; ++i)
            if (kernels[i]->name == name) return kernels[i];
        return nullptr;
    }
    const WeightFormat* format(int ggml_type) const {
        for (auto f = formats; *f; ++f)
            if ((*f)->ggml_type == ggml_type) return *f;
        return nullptr;
    }
};

}  // namespace zinc
