// A program: the launches of one plan over one arena, walked by the threads of a pool in one call a step.
#pragma once

#include <limits>

#include "kernel.h"
#include "pool.h"

namespace zinc {

class Program {
public:
    Program(Pool& pool, const Level& level, int64_t arena_bytes);

    // Operands in the arena carry their offset in `data` as if the arena began at null. Throws
    // std::invalid_argument.
    int add(std::string_view kernel, Dim dim, int32_t constant_rows, std::vector<Operand> in,
            std::vector<Operand> out, const Attrs& attrs);
    // Launches [first, last) over a batch. Throws std::invalid_argument when the batch contradicts itself or
    // is larger than the arena; a kernel may throw on what it alone can see (a token id past the vocabulary).
    void run(const Batch& batch, int first, int last);

    int size() const { return static_cast<int>(launches_.size()); }
    std::byte* arena(int64_t offset, int64_t bytes);  // checked
    // Rows of an activation as floats, whatever form they have: out [rows][cols]. For tests and `zinc
    // verify`.
    void read(Act act, int64_t offset, int64_t rows, int64_t cols, int64_t stride, float* out);
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

// Read rate of the memory in bytes a second: every thread walks its share of `bytes`, `reps` times; the best
// pass.
double read_bandwidth(Pool& pool, int64_t bytes, int reps);
// Rate of 8-bit multiply-adds of all threads, two operations each, a second.
double int8_peak(Pool& pool, const Level& level);

}  // namespace zinc
