// A program: the launches of one plan and their arena. One call runs a step on the threads of a pool.
#pragma once

#include <limits>

#include "kernel.h"
#include "pool.h"

namespace zinc {

class Program {
public:
    Program(Pool& pool, const Level& level, int64_t arena_bytes);

    // Adds a launch and returns its index. Operands in the arena have their byte offset in `data`. Throws
    // std::invalid_argument.
    int add(std::string_view kernel, Dim dim, int32_t constant_rows, std::vector<Operand> in,
            std::vector<Operand> out, const Attrs& attrs);
    // Runs launches [first, last) on a batch. Throws std::invalid_argument if the batch is inconsistent or
    // does not fit the arena. Kernels may throw too, for example on a token id outside the vocabulary.
    void run(const Batch& batch, int first, int last);

    int size() const { return static_cast<int>(launches_.size()); }
    std::byte* arena(int64_t offset, int64_t bytes);  // checked
    // Decodes rows in the arena to out, float [rows][cols]. For tests and `zinc verify`.
    void read(RowFormat format, int64_t offset, int64_t rows, int64_t cols, int64_t stride, float* out);
    void set_profile(bool on);
    const std::vector<int64_t>& times_ns() const { return times_ns_; }  // summed since set_profile(true)

private:
    void place(Operand& operand, Dim dim);
    void check(const Batch& batch) const;
    static void check_table(const Batch& batch, const KVLayer& kv);

    Pool& pool_;
    const Level& level_;
    Bytes arena_, common_;
    std::vector<Launch> launches_;
    std::vector<int> chunks_;
    std::vector<int64_t> times_ns_;
    std::vector<const KVLayer*> caches_;
    int64_t max_rows_[4];  // by Dim
    int64_t max_slots_ = std::numeric_limits<int32_t>::max();
    bool profile_ = false;
};

// Measures read bandwidth: all threads read a buffer of `bytes` bytes `reps` times. Returns bytes per second
// of the fastest pass.
double read_bandwidth(Pool& pool, int64_t bytes, int reps);
// Measures 8-bit operations per second of all threads; a multiply-add counts as two.
double int8_peak(Pool& pool, const Level& level);

}  // namespace zinc
