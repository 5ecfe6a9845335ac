#include "program.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "half.h"
#include "q8row.h"

namespace zinc {
namespace {

int64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void require(bool ok, const std::string& text) {
    if (!ok) throw std::invalid_argument(text);
}

}  // namespace

double Attrs::get(std::string_view name) const {
    for (const auto& [key, value] : items)
        if (key == name) return value;
    throw std::invalid_argument("attribute '" + std::string(name) + "' is missing");
}

double Attrs::get(std::string_view name, double fallback) const {
    for (const auto& [key, value] : items)
        if (key == name) return value;
    return fallback;
}

Program::Program(Pool& pool, const Level& level, int64_t arena_bytes) : pool_(pool), level_(level) {
    require(arena_bytes >= 0, "the arena cannot have a negative size");
    arena_ = Bytes(static_cast<size_t>(arena_bytes));
    std::ranges::fill(max_rows_, std::numeric_limits<int32_t>::max());
}

void Program::place(Operand& o, Dim dim) {
    if (o.tensor || o.kv || o.state || o.cols == 0) return;
    const int64_t offset = reinterpret_cast<intptr_t>(o.data);
    const int64_t size = static_cast<int64_t>(arena_.size), row = row_bytes(o.format, o.cols);
    require(o.cols > 0, "an operand has a negative number of columns");
    require(has_whole_blocks(o.format, o.cols),
            "a quantised operand has " + std::to_string(o.cols) + " columns, not a multiple of 32");
    const bool one_row = o.stride == 0, floats = o.format == RowFormat::f32;
    const int64_t used = floats ? int64_t{o.cols} * 4 : row;
    require(
        offset >= 0 && offset % (floats ? 4 : 64) == 0 && o.stride % 4 == 0 && (one_row || o.stride >= used),
        "an operand's offset (" + std::to_string(offset) + ") or stride (" + std::to_string(o.stride) +
            ") does not fit rows of " + std::to_string(row) + " bytes");
    // Float operands may be a view of some columns, so the last row may end before its stride.
    const int64_t last = floats ? used : std::max(used, o.stride);
    require(offset <= size - last, "an operand lies outside the arena");
    o.data = arena_.data + offset;
    o.room = one_row ? 1 : (size - last - offset) / o.stride + 1;
    auto& max_rows = max_rows_[static_cast<int>(dim)];
    if (dim != Dim::constant && !one_row) max_rows = std::min(max_rows, o.room);
}

int Program::add(std::string_view kernel, Dim dim, int32_t constant_rows, std::vector<Operand> in,
                 std::vector<Operand> out, const Attrs& attrs) {
    Launch launch;
    launch.kernel = level_.kernel(kernel);
    require(launch.kernel, "no kernel '" + std::string(kernel) + "' at level " + level_.name);
    launch.dim = dim;
    launch.constant_rows = constant_rows;
    launch.in = std::move(in);
    launch.out = std::move(out);
    launch.n_threads = pool_.size();
    launch.common = &common_;
    require(constant_rows >= 0, "a negative number of constant rows");
    for (auto* operands : {&launch.in, &launch.out}) {
        for (Operand& o : *operands) {
            place(o, dim);
            require(dim != Dim::constant || !o.data || constant_rows <= o.room,
                    "more constant rows than the arena holds");
            if (o.kv) caches_.push_back(o.kv);
            if (o.state) max_slots_ = std::min(max_slots_, o.state->slots);
        }
    }
    launch.kernel->prepare(launch, attrs);
    launches_.push_back(std::move(launch));
    chunks_.resize(launches_.size());
    times_ns_.resize(launches_.size());
    return size() - 1;
}

void Program::check(const Batch& b) const {
    require(b.n_tokens <= max_rows_[static_cast<int>(Dim::tokens)],
            "a step of " + std::to_string(b.n_tokens) + " tokens does not fit the arena");
    require(b.n_outputs <= max_rows_[static_cast<int>(Dim::outputs)],
            "a step with " + std::to_string(b.n_outputs) + " output rows does not fit the arena");
    require(b.n_sequences <= max_rows_[static_cast<int>(Dim::sequences)],
            "a step with " + std::to_string(b.n_sequences) + " sequences does not fit the arena");
    require(b.seq_start[0] == 0 && b.seq_start[b.n_sequences] == b.n_tokens,
            "seq_start does not span the tokens");
    for (int s = 0; s < b.n_sequences; ++s) {
        const int first = b.seq_start[s], last = b.seq_start[s + 1];
        require(first <= last && last <= b.n_tokens, "seq_start does not rise to the number of tokens");
        for (int t = first; t < last; ++t) {
            require(b.sequence[t] == s, "a token is outside its sequence");
            require(b.positions[t] >= 0 && (t == first || b.positions[t] - 1 == b.positions[t - 1]),
                    "the positions of a sequence are not consecutive");
        }
    }
    for (int i = 0; i < b.n_outputs; ++i)
        require(b.output_rows[i] >= 0 && b.output_rows[i] < b.n_tokens,
                "an output row is not a token of the step");
    for (int s = 0; max_slots_ < std::numeric_limits<int32_t>::max() && s < b.n_sequences; ++s)
        require(b.state_slot[s] >= 0 && b.state_slot[s] < max_slots_, "no such state slot");
    for (const KVLayer* kv : caches_) check_table(b, *kv);
}

// A freed block (-1) may only lie before the tokens of the step. Kernels must not read it.
void Program::check_table(const Batch& b, const KVLayer& kv) {
    require(kv.group >= 0 && kv.group < static_cast<int>(b.tables.size()), "a block table is missing");
    const Batch::Table& table = b.tables[static_cast<size_t>(kv.group)];
    for (int s = 0; s < b.n_sequences; ++s) {
        if (b.seq_start[s] == b.seq_start[s + 1]) continue;
        const int64_t first = b.positions[b.seq_start[s]] / kv.block_tokens;
        const int64_t last = b.positions[b.seq_start[s + 1] - 1] / kv.block_tokens;
        require(last < table.stride, "a block table is too short for the positions of its sequence");
        for (int64_t i = 0; i <= last; ++i) {
            const int32_t block = table.blocks[s * table.stride + i];
            require(block < kv.n_blocks && block >= (i < first ? -1 : 0),
                    "a block table names no block of its cache");
        }
    }
}

void Program::run(const Batch& batch, int first, int last) {
    require(0 <= first && first <= last && last <= size(), "no such launches");
    check(batch);
    for (int i = first; i < last; ++i) {
        const Launch& launch = launches_[static_cast<size_t>(i)];
        chunks_[static_cast<size_t>(i)] = launch.kernel->chunks(launch, batch, pool_.size());
    }
    struct Context {
        const Launch* launches;
        const Batch* batch;
    } context{launches_.data() + first, &batch};
    auto call = [](void* c, int item, int chunk, Scratch& scratch) {
        const auto& [launches, b] = *static_cast<Context*>(c);
        launches[item].kernel->run(launches[item], *b, chunk, scratch);
    };
    if (!profile_) return pool_.run(last - first, chunks_.data() + first, call, &context);
    for (int i = first; i < last; ++i, ++context.launches) {
        const int64_t start = now_ns();
        pool_.run(1, &chunks_[static_cast<size_t>(i)], call, &context);
        times_ns_[static_cast<size_t>(i)] += now_ns() - start;
    }
}

std::byte* Program::arena(int64_t offset, int64_t bytes) {
    const int64_t size = static_cast<int64_t>(arena_.size);
    require(offset >= 0 && bytes >= 0 && bytes <= size && offset <= size - bytes, "outside the arena");
    return arena_.data + offset;
}

void Program::read(RowFormat format, int64_t offset, int64_t rows, int64_t cols, int64_t stride, float* out) {
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    require(rows >= 0 && cols > 0 && stride >= 0 && rows <= kLimit && cols <= kLimit && stride <= kLimit,
            "no such rows in the arena");
    require(has_whole_blocks(format, cols), "rows of 8 bits in the arena have whole blocks of 32 columns");
    require(offset % 4 == 0 && stride % 4 == 0, "rows in the arena start at a multiple of 4 bytes");
    if (rows == 0) return;
    const int64_t bytes = format == RowFormat::f32 ? cols * 4 : row_bytes(format, cols);
    const std::byte* row = arena(offset, (rows - 1) * stride + bytes);
    for (int64_t t = 0; t < rows; ++t, row += stride, out += cols) {
        if (format == RowFormat::f32) {
            std::memcpy(out, row, static_cast<size_t>(cols) * 4);
        } else if (format == RowFormat::bf16) {
            const auto* halves = reinterpret_cast<const uint16_t*>(row);
            for (int64_t k = 0; k < cols; ++k) out[k] = bf16_to_f32(halves[k]);
        } else if (format == RowFormat::q15_32) {
            const auto* q = reinterpret_cast<const int16_t*>(row);
            const auto* d = reinterpret_cast<const float*>(row + Q15Row(cols).d);
            for (int64_t k = 0; k < cols; ++k) out[k] = d[k / 32] * static_cast<float>(q[k]);
        } else {
            const int64_t block = format_block(format);
            const auto* d = reinterpret_cast<const float*>(row + Q8Row(format, cols).d);
            for (int64_t k = 0; k < cols; ++k)
                out[k] = d[k / block] * static_cast<float>(static_cast<int8_t>(row[k]));
        }
    }
}

void Program::set_profile(bool on) {
    profile_ = on;
    if (on) std::ranges::fill(times_ns_, 0);
}

double read_bandwidth(Pool& pool, int64_t bytes, int reps) {
    require(bytes >= 1 << 20 && reps > 0, "bandwidth needs at least a MiB and one repetition");
    const int64_t share = bytes / 64 / pool.size() * 64, words = share / 8;
    Bytes buffer(static_cast<size_t>(share * pool.size()));
    auto* data = reinterpret_cast<uint64_t*>(buffer.data);
    std::fill_n(data, words * pool.size(), 1);
    std::atomic<uint64_t> checksum{0};
    double best = 0;
    for (int rep = 0; rep < reps; ++rep) {
        const int64_t start = now_ns();
        // Small pieces, so that other threads take over the work of a thread that was preempted.
        const int pieces = static_cast<int>(std::max<int64_t>(1, words * pool.size() * 8 >> 20));
        const int64_t piece = words * pool.size() / pieces / 8 * 8;
        pool.for_chunks(pieces, [&](int chunk, Scratch&) {
            const uint64_t* p = data + chunk * piece;
            uint64_t sums[8] = {};
            for (int64_t i = 0; i < piece; i += 8) {
                __builtin_prefetch(prefers_alternating_pages
                                       ? alternating_line<4>(reinterpret_cast<const std::byte*>(p + i))
                                       : reinterpret_cast<const std::byte*>(p + i + 512));
                for (int j = 0; j < 8; ++j) sums[j] += p[i + j];
            }
            for (uint64_t s : sums) checksum += s;
        });
        best = std::max(
            best, static_cast<double>(piece * pieces * 8) / static_cast<double>(now_ns() - start) * 1e9);
    }
    return checksum ? best : 0;
}

double int8_peak(Pool& pool, const Level& level) {
    double best = 0;
    const int64_t end = now_ns() + 200'000'000;  // threads that just woke up may share a core at first
    for (int rep = 0; rep < 5 || now_ns() < end; ++rep) {
        std::atomic<int64_t> done{0};
        const int64_t start = now_ns();
        pool.for_chunks(pool.size() * 16, [&](int, Scratch&) { done += level.int8_peak(4000); });
        best = std::max(best, 2.0 * static_cast<double>(done) / static_cast<double>(now_ns() - start) * 1e9);
    }
    return best;
}

}  // namespace zinc
