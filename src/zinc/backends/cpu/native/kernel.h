// The interface between a program (program.h) and the kernels (kernels/*.cpp).
//
// A program is a list of launches. A launch names one kernel and its operands. For each batch, the kernel
// divides the launch into independent chunks, and each call of `run` processes one chunk. Threads of the pool
// claim chunks in any order, so two chunks must never write the same memory. The order of the float
// operations behind one output value may depend on its row only: never on the number of tokens in the batch,
// the chunk or the number of threads (batch invariance).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zinc {

// Storage formats of rows of activations in the arena. q8row.h describes the layouts.
enum class RowFormat : uint8_t { f32, q8_32, q8_256, q15_32, bf16 };

// An owned, zeroed buffer. The system commits the pages of a large buffer when they are first touched, as
// huge pages if it has them, so a KV cache for a long context costs only the part in use. The constructor
// throws std::bad_alloc.
struct Bytes {
    std::byte* data = nullptr;
    size_t size = 0;
    Bytes() = default;
    bool in_slab = false;
    explicit Bytes(size_t n);
    // A buffer for data that lives as long as a model. Small buffers share huge pages, which are unmapped
    // when the last buffer in them is freed.
    static Bytes for_model(size_t n);
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

// Whether the L1 data cache is known to have at least 48 KiB.
extern const bool has_large_l1;

// Whether reads are faster when prefetches alternate between several pages. On Intel the hardware prefetcher
// follows each page for a limited distance but follows many pages at once (dev/kernels has the rates).
extern const bool prefers_alternating_pages;

// The line to prefetch while the line at `p` is read: a line of one of the next kPages pages. Consecutive
// lines alternate between these pages.
template <uintptr_t kPages>
[[gnu::always_inline]] inline const std::byte* alternating_line(const std::byte* p) {
    constexpr uintptr_t kPage = 4096, kAll = kPages * kPage;
    const auto at = reinterpret_cast<uintptr_t>(p), line = at % kAll / 64;
    return p - at % kAll + kAll + line % kPages * kPage + line / kPages * 64;
}

struct WeightFormat;

// A weight in the layout that kernels read: `planes` matrices (one for each expert; 1 for a dense weight) of
// `rows` x `cols`, each divided into tiles of 16 rows (planes.h). A vector (norm weight, bias) is plain f32.
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

// KV cache of one layer, in blocks of `block_tokens` positions. `group` selects the block table of the batch:
// layers with full attention and layers with a sliding window have different tables.
//
// clang-format off
//   K  [block][head][tile of 16 positions][head_dim][16]      lanes = positions: q.K needs no transposition
//   V  [block][head][position][head_dim_v]                    lanes = dimensions
// clang-format on
//
// The diagram is that of f16. q8_0 and q4_0 store integers and one f16 scale per 32 dimensions; their order
// is in kernels/kv_layout.h.
enum class KvType : uint8_t { f16, q8_0, q4_0 };
struct KVLayer {
    int group = 0;
    int n_blocks = 0, block_tokens = 0, n_heads = 0, head_dim = 0, head_dim_v = 0;
    KvType type = KvType::f16;
    bool v_from_k = false;  // values are the last head_dim_v dimensions of the keys; `v` is empty
    Bytes k, v;
};

// Recurrent state of one layer: f32 [slots][floats_per_slot].
struct StateLayer {
    int64_t slots = 0, floats_per_slot = 0;
    Bytes bytes;
};

// An operand of a launch: rows in the arena, a weight, a KV cache or a recurrent state. An absent optional
// operand has none of them.
struct Operand {
    RowFormat format = RowFormat::f32;  // of rows in the arena: storage format,
    int32_t cols = 0;                   //   elements per row,
    int64_t stride = 0;         //   bytes from row to row (0: a single row for all rows of the launch),
    int64_t room = 0;           //   number of rows that fit between `data` and the end of the arena,
    std::byte* data = nullptr;  //   first byte; null if the operand is absent or not rows
    const PackedTensor* tensor = nullptr;
    KVLayer* kv = nullptr;
    StateLayer* state = nullptr;

    explicit operator bool() const { return data || tensor || kv || state; }
    template <class T = float>
    T* row(int64_t r) const {
        return reinterpret_cast<T*>(data + r * stride);
    }
};

// The inputs of one step. Tokens of a sequence are adjacent and in order of position.
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
    // [n_sequences][n_adapters] scale of each LoRA adapter for a sequence; null if none is used
    const float* adapters = nullptr;
    int32_t n_adapters = 0;
};

// The kind of the rows of a launch, which determines their number in a step.
enum class Dim : uint8_t { constant, tokens, outputs, sequences };

// Named numbers of a launch (eps, n_heads, ...). Kernel::prepare reads them once.
struct Attrs {
    std::vector<std::pair<std::string, double>> items;
    double get(std::string_view name) const;  // throws std::invalid_argument if absent
    double get(std::string_view name, double fallback) const;
};

struct Launch;

// Scratch memory of one thread. It grows on demand and never shrinks.
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
    // Checks the operands and reads the attributes into launch.params. Throws std::invalid_argument.
    void (*prepare)(Launch&, const Attrs&);
    int (*chunks)(const Launch&, const Batch&, int n_threads);
    void (*run)(const Launch&, const Batch&, int chunk, Scratch&);
};

struct Launch {
    const Kernel* kernel = nullptr;
    Dim dim = Dim::tokens;
    int32_t constant_rows = 0;
    std::vector<Operand> in, out;  // operands.h names the inputs
    int n_threads = 1;
    alignas(16) std::byte params[128] = {};
    // Memory shared by the chunks of this launch (counters, work lists). Sized in prepare() or chunks().
    mutable Bytes shared;
    // Scratch shared by all launches of a program; its contents are valid during one launch. Only chunks()
    // may grow it: one thread calls chunks() of every launch before the first launch of a step runs.
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

// Rows at a constant distance of `stride` bytes, in WeightFormat::row_format.
struct StridedRows {
    const std::byte* data = nullptr;
    int64_t stride = 0;
    const std::byte* operator[](int64_t row) const { return data + row * stride; }
    StridedRows operator+(int64_t row) const { return {data + row * stride, stride}; }
};

// Arguments of a matrix product: one or two weight tiles of 16 rows times n rows of x.
//   out[t][16 r + lane] = sum over k of tile[r][lane][k] * x[t][k]
// The order of the sum over k depends on `cols` only.
struct TileMatmul {
    const std::byte* tile[2] = {};
    int n_tiles = 1;
    int64_t cols = 0;
    StridedRows x;
    int n = 0;
    float* out = nullptr;  // [n][kOutStride]
    // The tiles to be read after tile[0] and tile[1], for prefetching; null: the memory that follows them.
    const std::byte* next[2] = {};
    // Memory that the caller touches next: for each of the n rows `lines` cache lines of 64 bytes. A format
    // may prefetch them.
    struct UpcomingRows {
        StridedRows rows;
        int lines = 0;
    };
    UpcomingRows upcoming[2] = {};
};
inline constexpr int kOutStride = 2 * kTileRows;

// A block format of weights at one SIMD level. Each format snippet in *_formats.cpp defines one.
struct WeightFormat {
    const char* name;  // of the type in GGUF
    RowFormat row_format;
    int block;           // values in a block; cols must be a multiple
    int source_bytes;    // bytes of a block in the file
    int codebook_bytes;  // size of the codebook whose points the file's indices name; 0: no codebook
    int64_t (*tile_bytes)(int64_t cols);
    // Packs one tile from its 16 source rows. A null row, past the last row of the matrix, is packed as
    // zeros.
    void (*pack)(const std::byte* const* rows, int64_t cols, const uint8_t* codebook, std::byte* tile);
    // Decodes row `lane` of a tile to floats, with the same snippet that matmul uses.
    void (*decode)(const std::byte* tile, int64_t cols, int lane, float* out);
    void (*matmul)(const TileMatmul&);
    int panel_rows = 512;  // most rows of x in one product, so that their sums stay in the cache
};

// The formats of one file of snippets.
using Formats = std::span<const WeightFormat>;

// The kernels and formats of a SIMD level, defined in kernels/table.cpp.
struct Level {
    const char* name;
    const Kernel* const* kernels;
    size_t n_kernels;
    const Formats* const* formats;  // ends with null
    // Runs 8-bit multiply-adds at the peak rate of the level and returns their number: the roofline of
    // prefill.
    int64_t (*int8_peak)(int64_t iterations);

    const Kernel* kernel(std::string_view name) const {
        for (size_t i = 0; i < n_kernels; ++i)
            if (kernels[i]->name == name) return kernels[i];
        return nullptr;
    }
    const WeightFormat* format(std::string_view name) const {
        for (auto list = formats; *list; ++list)
            for (const WeightFormat& format : **list)
                if (format.name == name) return &format;
        return nullptr;
    }
};

}  // namespace zinc
