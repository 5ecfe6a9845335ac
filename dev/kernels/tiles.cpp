// Benchmark of the tile GEMM of every weight format: ns per row and vector from the L1 cache, and GB/s
// of weights that two threads stream from memory. It measures a changed kernel in seconds, without a model.
//
//   n=src/zinc/backends/cpu/native; level=avx512bf16; o=build/dev/CMakeFiles/kernels_$level.dir/$n/kernels
//   g++ -O2 -std=c++20 -DZINC_LEVEL=$level -I$n dev/kernels/tiles.cpp $o/*.o
//     $n/{memory,check,program,pool}.cpp -lpthread -o build/tiles && build/tiles [cols [format]]
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernel.h"
#include "q8row.h"

namespace zinc::ZINC_LEVEL {
extern const WeightFormat* const kFormats[];
}
using namespace zinc;

namespace {

constexpr int kRows[] = {1, 2, 4, 6, 8, 12, 16, 32, 64, 256};
constexpr int kMostRows = 256;
constexpr int64_t kStreamBytes = int64_t{256} << 20;  // past any cache
constexpr int64_t kChunkTiles = 16;                   // a thread takes at a time

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class F>
double best_of(int reps, F&& f) {
    double best = 1e30;
    for (int i = 0; i < reps; ++i) {
        const double start = now_s();
        f();
        best = std::min(best, now_s() - start);
    }
    return best;
}

// Multiply with all tiles on two threads, which take chunks of neighbouring tiles.
void stream(const WeightFormat& f, TileMatmul product, const std::byte* tiles, int64_t n_tiles) {
    const int64_t bytes = f.tile_bytes(product.cols);
    std::atomic<int64_t> next{0};
    auto work = [&] {
        std::vector<float> out(kMostRows * kOutStride);
        TileMatmul p = product;
        p.out = out.data();
        for (int64_t i; (i = next.fetch_add(kChunkTiles)) + kChunkTiles <= n_tiles;)
            for (int64_t tile = i; tile < i + kChunkTiles; tile += 2) {
                for (int r = 0; r < 2; ++r) {
                    p.tile[r] = tiles + (tile + r) * bytes;
                    p.next[r] = p.tile[r] + 2 * bytes;
                }
                f.matmul(p);
            }
    };
    std::thread other(work);
    work();
    other.join();
}

}  // namespace

int main(int argc, char** argv) {
    const int64_t cols = argc > 1 ? std::atoll(argv[1]) : 1024;
    syscall(SYS_arch_prctl, 0x1023, 18);  // level amx: request the tile registers from Linux
    const Bytes tiles(kStreamBytes);
    std::mt19937 random(1);
    for (auto format = ZINC_LEVEL::kFormats; *format; ++format) {
        const WeightFormat& f = **format;
        if (argc > 2 && std::strcmp(argv[2], f.name) != 0) continue;
        const int64_t bytes = f.tile_bytes(cols), n_tiles = kStreamBytes / bytes;
        // Time does not depend on the weights, except for subnormal numbers: small positive bytes
        // avoid them.
        for (int64_t i = 0; i < n_tiles * bytes; ++i) tiles.data[i] = std::byte(17 + i % 32);
        const int64_t row = row_bytes(f.row_format, cols);
        const Bytes x(static_cast<size_t>(row * kMostRows));
        // Small bytes would be subnormal as floats.
        const bool floats = f.row_format == RowFormat::f32;
        for (int64_t i = 0; i < kMostRows * row; ++i)
            x.data[i] = std::byte(floats ? 0x3f : 0x21 + random() % 31);
        std::vector<float> out(kMostRows * kOutStride);
        for (int n : kRows) {
            TileMatmul p{{tiles.data, tiles.data + bytes}, 2, cols, {x.data, row}, n, out.data(),
                         {tiles.data, tiles.data + bytes}};
            const int calls = 2000 / n + 2;
            const double cached = best_of(7,
                                          [&] {
                                              for (int i = 0; i < calls; ++i) f.matmul(p);
                                          }) /
                                  calls;
            std::printf("%-8s %3d rows  %7.3f ns a row and vector of 64 weights, %6.1f GB/s from cache",
                        f.name, n, cached * 1e9 / (2.0 * static_cast<double>(cols) / 4 * n),
                        static_cast<double>(2 * bytes) / cached / 1e9);
            if (n <= 32) {
                const double s = best_of(4, [&] { stream(f, p, tiles.data, n_tiles); });
                std::printf(", %6.1f from memory by two threads",
                            static_cast<double>(n_tiles * bytes) / s / 1e9);
            }
            std::printf("\n");
        }
    }
}
