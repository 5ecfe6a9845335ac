// Compares every SIMD level that was built and runs here with the scalar one, without Python: packing,
// decoding, quantisation and products. It exists for machines that one can only cross-compile for:
//
//   cmake -S . -B build/arm -DZINC_LEVEL_CHECK=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
//         -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ && cmake --build build/arm
//   qemu-aarch64 -L /usr/aarch64-linux-gnu build/arm/level_check
#include "../levels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "../half.h"
#include "../pack.h"
#include "../program.h"
#include "../q8row.h"

namespace {

using namespace zinc;

constexpr int kRows = 21, kTokens = 17;

std::mt19937 random_bits(1);

// Random blocks; their f16 scales must be finite, so every half word that is not stays below infinity.
std::vector<std::byte> random_source(const WeightFormat& f, int64_t rows, int64_t cols) {
    std::vector<std::byte> data(static_cast<size_t>(rows * cols / f.block * f.source_bytes));
    for (auto& byte : data) byte = static_cast<std::byte>(random_bits() & 0x3b);
    return data;
}

// y [kTokens][kRows] of a program that quantises x and multiplies, n tokens at a time.
std::vector<float> multiply(Pool& pool, const Level& level, const PackedTensor& w,
                            const std::vector<float>& x, int n) {
    const auto cols = static_cast<int32_t>(w.cols);
    const Act act = w.format->activation;
    const int64_t xs = row_bytes(Act::f32, cols), qs = row_bytes(act, cols), ys = row_bytes(Act::f32, kRows);
    const int64_t q_at = xs * kTokens, y_at = q_at + qs * kTokens;
    Program program(pool, level, y_at + ys * kTokens);
    const auto rows = [](Act a, int32_t c, int64_t stride, int64_t offset) {
        return Operand{a, c, stride, 0, reinterpret_cast<std::byte*>(offset), nullptr, nullptr, nullptr};
    };
    const Operand source = rows(Act::f32, cols, xs, 0);
    const Operand input = act == Act::f32 ? source : rows(act, cols, qs, q_at);
    Operand weight;
    weight.tensor = &w;
    if (act != Act::f32) program.add("quantize", Dim::tokens, 0, {source}, {input}, {});
    program.add("linear", Dim::tokens, 0, {input, weight, {}, {}}, {rows(Act::f32, kRows, ys, y_at)},
                {{{"n_parts", 1}}});
    std::vector<int32_t> ids(kTokens), sequence(kTokens);
    for (int t = 0; t < kTokens; ++t) ids[static_cast<size_t>(t)] = t;
    std::vector<float> y;
    for (int first = 0; first < kTokens; first += n) {
        const int32_t count = std::min(n, kTokens - first), starts[] = {0, count}, slot = 0;
        for (int t = 0; t < count; ++t)
            std::memcpy(program.arena(t * xs, xs), &x[static_cast<size_t>((first + t) * cols)],
                        static_cast<size_t>(cols) * 4);
        Batch b;
        b.n_tokens = count;
        b.n_sequences = 1;
        b.ids = b.positions = ids.data();
        b.sequence = sequence.data();
        b.seq_start = starts;
        b.state_slot = &slot;
        program.run(b, 0, program.size());
        for (int t = 0; t < count; ++t) {
            const auto* row = reinterpret_cast<const float*>(program.arena(y_at + t * ys, ys));
            y.insert(y.end(), row, row + kRows);
        }
    }
    return y;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double worst = 0, scale = 1e-30;
    for (size_t i = 0; i < a.size(); ++i) {
        if (!std::isfinite(a[i])) return INFINITY;
        worst = std::max(worst, std::fabs(double{a[i]} - b[i]));
        scale = std::max(scale, std::fabs(double{b[i]}));
    }
    return worst / scale;
}

}  // namespace

int main() {
    Pool pool(2);
    const auto levels = runnable_levels();
    const Level& scalar = *levels.back();
    int failures = 0;
    for (const Level* level : levels) {
        for (auto f = level->formats; *f; ++f) {
            const WeightFormat& reference = *scalar.format((*f)->ggml_type);
            const int64_t cols = reference.block >= 256 ? 512 : 320;
            const auto source = random_source(**f, kRows, cols);
            std::vector<uint8_t> codebook(static_cast<size_t>(reference.codebook_bytes));
            for (auto& digit : codebook) digit = static_cast<uint8_t>(random_bits() % 3);
            const PackedTensor ours = pack(pool, **f, source, 1, kRows, cols, nullptr, 0, codebook);
            const PackedTensor theirs = pack(pool, reference, source, 1, kRows, cols, nullptr, 0, codebook);
            std::vector<float> decoded(static_cast<size_t>(kRows * cols)), expected(decoded.size());
            unpack(ours, decoded.data());
            unpack(theirs, expected.data());
            const bool same = decoded == expected;

            std::vector<float> x(static_cast<size_t>(kTokens * cols));
            for (float& value : x) value = std::normal_distribution<float>()(random_bits);
            if ((*f)->activation != reference.activation)  // BF16: give both what bfloat16 can hold
                for (float& value : x) value = bf16_to_f32(f32_to_bf16(value));
            const auto together = multiply(pool, *level, ours, x, kTokens);
            const bool invariant = together == multiply(pool, *level, ours, x, 1) &&
                                   together == multiply(pool, *level, ours, x, 5);
            const double error = largest_difference(together, multiply(pool, scalar, theirs, x, kTokens));
            const bool ok = same && invariant && error < 1e-5;
            failures += !ok;
            std::printf("%-11s %-7s decode %s  batch invariant %s  product differs by %.1e  %s\n",
                        level->name, (*f)->name, same ? "same" : "DIFFERS", invariant ? "yes" : "NO", error,
                        ok ? "ok" : "FAILED");
        }
    }
    return failures ? 1 : 0;
}
