// Runs CUDA C++ kernels on the CPU, so that their results are tested where there is no GPU.
//
// A block's threads are fibers that one OS thread runs in turn; blocks run one after another, or on
// several OS threads. Barriers and warp functions switch fibers until every thread has arrived.
// Shared memory is thread-local storage of the OS thread. Speed says nothing about a GPU.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ thread_local
#define __constant__ static
#define __align__(n) __attribute__((aligned(n)))

struct dim3
{
    uint32_t x, y, z;
};

template <class To, class From> inline To bitCast(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

/// Converts a number as CUDA does. A float outside the range of an integer type becomes the nearest
/// value of the type, and NaN becomes 0.
template <class To, class From> inline To converted(From x)
{
    if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
        using Limits = std::numeric_limits<To>;
        return std::isnan(x) ? 0 : To(std::clamp<double>(x, Limits::min(), Limits::max()));
    }
    return To(x);
}

namespace emulator {

constexpr int WARP = 32;
constexpr size_t STACK_BYTES = 256 << 10;
constexpr long MAX_TURNS = 1 << 16;  // of all threads of a block

// An asynchronous copy of 16 bytes to shared memory. Without a source it stores zeros.
struct Copy {
    void* to;
    const void* from;
    int bytes, group;
};

struct Fiber {
    ucontext_t context;  // entered once, to start the fiber
    jmp_buf place;       // where the fiber continues: unlike swapcontext, a jump makes no system call
    bool entered;
    char* stack;
    bool done;
    bool waited;               // has called waitForInputs
    std::vector<Copy> copies;  // asynchronous copies that have not taken effect
    int groups;                // groups of copies that the thread has ended
};

// Lanes of a warp that call warp functions with the same mask.
struct Meeting {
    uint32_t mask;
    uint32_t arrived;
    uint32_t number;  // of the current call
    uint64_t slots[2][WARP];
};

struct Warp {
    std::vector<Meeting> meetings;
    uint32_t live;  // mask of the lanes that have not returned
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    void (*kernel)(const void*);
    const void* context;  // of the kernel
    jmp_buf scheduler;
    uint64_t number;  // of the OS thread's blocks, from 1 on
    int n_threads, current, live, waiting;
    uint32_t barrier;  // barriers that all threads have passed
    dim3 index, grid;
};

inline thread_local Block* block;

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: block (%u, %u, %u), thread %d: %s\n", block->index.x,
                 block->index.y, block->index.z, block->current, what);
    std::abort();
}

inline void yield() {
    Block& b = *block;
    if (!_setjmp(b.fibers[b.current].place)) _longjmp(b.scheduler, 1);
}

inline void release_barrier(Block& b) {
    if (b.live > 0 && b.waiting == b.live) {
        b.waiting = 0;
        ++b.barrier;
    }
}

inline void sync_block() {
    Block& b = *block;
    const uint32_t mine = b.barrier;
    ++b.waiting;
    release_barrier(b);
    while (b.barrier == mine) yield();
}

// Exchanges `value` between the lanes of `mask`: returns the slots of all lanes, which are valid
// until this lane's next call. The last lane to arrive calls `act` with them before the others
// continue.
template <class Act = void (*)(const uint64_t*)>
inline const uint64_t* sync_warp(
    uint32_t mask, uint64_t value, Act act = [](const uint64_t*) {}) {
    Block& b = *block;
    Warp& w = b.warps[b.current / WARP];
    size_t i = 0;
    while (i < w.meetings.size() && w.meetings[i].mask != mask) ++i;
    if (i == w.meetings.size()) w.meetings.push_back({mask, 0, 0, {}});
    const uint32_t mine = w.meetings[i].number;
    const uint32_t lane = 1u << b.current % WARP;
    if (!(mask & lane)) fail("a lane calls a warp function without being in its mask");
    w.meetings[i].slots[mine & 1][b.current % WARP] = value;
    w.meetings[i].arrived |= lane;
    while (w.meetings[i].number == mine) {
        if ((w.meetings[i].arrived & w.live) == (mask & w.live)) {
            act(w.meetings[i].slots[mine & 1]);
            w.meetings[i].arrived = 0;
            ++w.meetings[i].number;
        } else {
            yield();
        }
    }
    return w.meetings[i].slots[mine & 1];
}

inline float half_to_float(uint32_t bits) {
    static const std::vector<float> table = [] {
        std::vector<float> t(1 << 16);
        for (uint32_t i = 0; i < t.size(); ++i) t[i] = float(bitCast<_Float16>(uint16_t(i)));
        return t;
    }();
    return table[bits & 0xffff];
}

inline float bfloat_to_float(uint32_t bits) { return bitCast<float>(bits << 16); }

// The operands of a lane in mma.sync.m16n8k16 (see mma.cuh).
struct TileOperands {
    float* d;
    const uint32_t* a;
    uint32_t b[2];
};

// `number` returns the number in the low 16 bits of a word.
template <float (*number)(uint32_t) = half_to_float>
void multiply_tiles(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
    TileOperands mine{d, a, {b0, b1}};
    sync_warp(~0u, reinterpret_cast<uint64_t>(&mine), [](const uint64_t* slots) {
        auto lane = [&](int i) -> TileOperands& { return *reinterpret_cast<TileOperands*>(slots[i]); };
        float a[16][16], b[16][8];
        for (int i = 0; i < WARP; ++i)
            for (int j = 0; j < 4; ++j)
                for (int k = 0; k < 2; ++k) {
                    const int q = i / 4, col = 2 * (i % 4) + k + 8 * (j / 2);
                    a[q + 8 * (j % 2)][col] = number(lane(i).a[j] >> 16 * k);
                    if (j % 2 == 0) b[col][q] = number(lane(i).b[j / 2] >> 16 * k);
                }
        for (int i = 0; i < WARP; ++i)
            for (int j = 0; j < 4; ++j) {
                float sum = lane(i).d[j];
                for (int k = 0; k < 16; ++k)
                    sum += a[i / 4 + 8 * (j / 2)][k] * b[k][2 * (i % 4) + j % 2];
                lane(i).d[j] = sum;
            }
    });
}

// The operands of a lane in mma.sync.m16n8k32 of signed bytes (see mma.cuh).
struct ByteOperands {
    int* d;
    const uint32_t* a;
    uint32_t b[2];
};

inline void multiply_byte_tiles(int* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
    ByteOperands mine{d, a, {b0, b1}};
    sync_warp(~0u, reinterpret_cast<uint64_t>(&mine), [](const uint64_t* slots) {
        auto lane = [&](int i) -> ByteOperands& { return *reinterpret_cast<ByteOperands*>(slots[i]); };
        int a[16][32], b[32][8];
        for (int i = 0; i < WARP; ++i)
            for (int j = 0; j < 4; ++j)
                for (int k = 0; k < 4; ++k) {
                    const int q = i / 4, col = 4 * (i % 4) + k + 16 * (j / 2);
                    a[q + 8 * (j % 2)][col] = int8_t(lane(i).a[j] >> 8 * k);
                    if (j % 2 == 0) b[col][q] = int8_t(lane(i).b[j / 2] >> 8 * k);
                }
        for (int i = 0; i < WARP; ++i)
            for (int j = 0; j < 4; ++j)
                for (int k = 0; k < 32; ++k)
                    lane(i).d[j] += a[i / 4 + 8 * (j / 2)][k] * b[k][2 * (i % 4) + j % 2];
    });
}

// Exchanges the addresses of 32 rows of eight float16 numbers, aligned to 16 bytes.
inline std::array<const uint16_t*, WARP> matrix_rows(const void* row) {
    if (reinterpret_cast<uint64_t>(row) % 16) fail("a row of a matrix is not aligned to 16 bytes");
    std::array<const uint16_t*, WARP> rows;
    const uint64_t* slots = sync_warp(~0u, reinterpret_cast<uint64_t>(row));
    for (int i = 0; i < WARP; ++i) rows[i] = reinterpret_cast<const uint16_t*>(slots[i]);
    return rows;
}

inline void load_matrices(uint32_t* r, const void* row) {
    const auto rows = matrix_rows(row);
    const int q = block->current % WARP / 4, c = 2 * (block->current % 4);
    for (int i = 0; i < 4; ++i) r[i] = rows[8 * i + q][c] | rows[8 * i + q][c + 1] << 16;
}

inline void load_matrices_transposed(uint32_t* r, const void* row) {
    const auto rows = matrix_rows(row);
    const int q = block->current % WARP / 4, c = 2 * (block->current % 4);
    for (int i = 0; i < 4; ++i) r[i] = rows[8 * i + c][q] | rows[8 * i + c + 1][q] << 16;
}

// Copies take effect as late as allowed, so that a missing wait gives wrong results.
inline void copy_async(void* to, const void* from, int bytes = 16) {
    Fiber& f = block->fibers[block->current];
    if ((reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % bytes)
        fail("an asynchronous copy is not aligned to its size");
    f.copies.push_back({to, from, bytes, f.groups});
}

inline void commit_copies() { ++block->fibers[block->current].groups; }

inline void wait_for_copies(int pending) {
    Fiber& f = block->fibers[block->current];
    auto incomplete = std::find_if(
        f.copies.begin(), f.copies.end(),
        [&](const Copy& copy) { return copy.group >= f.groups - pending; });
    std::for_each(f.copies.begin(), incomplete, [](const Copy& copy) {
        if (copy.from) std::memcpy(copy.to, copy.from, copy.bytes);
        else std::memset(copy.to, 0, copy.bytes);
    });
    f.copies.erase(f.copies.begin(), incomplete);
}

// Runs all threads of a grid, `n_workers` blocks at a time. Each calls kernel(context).
void launch(
    dim3 grid, int n_threads, int n_workers, void (*kernel)(const void*), const void* context);

template <class Kernel> void launch(dim3 grid, int n_threads, int n_workers, const Kernel& kernel)
{
    const auto call = [](const void* context) { (*static_cast<const Kernel*>(context))(); };
    launch(grid, n_threads, n_workers, call, &kernel);
}

}  // namespace emulator

#define blockIdx (emulator::block->index)
#define gridDim (emulator::block->grid)
#define threadIdx (dim3{uint32_t(emulator::block->current), 0, 0})
#define blockDim (dim3{uint32_t(emulator::block->n_threads), 1, 1})

inline void __syncthreads() { emulator::sync_block(); }
inline void __syncwarp(uint32_t mask = ~0u) { emulator::sync_warp(mask, 0); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T> uint64_t toSlot(T v) {
    uint64_t slot = 0;
    static_assert(sizeof v <= sizeof slot);
    std::memcpy(&slot, &v, sizeof v);
    return slot;
}
template <class T> T fromSlot(uint64_t slot) {
    T v;
    std::memcpy(&v, &slot, sizeof v);
    return v;
}
inline int laneId() { return emulator::block->current % emulator::WARP; }

template <class T> T __shfl_xor_sync(uint32_t mask, T v, int with) {
    return fromSlot<T>(emulator::sync_warp(mask, toSlot(v))[laneId() ^ with]);
}
template <class T> T __shfl_sync(uint32_t mask, T v, int lane) {
    return fromSlot<T>(emulator::sync_warp(mask, toSlot(v))[lane & 31]);
}
inline uint32_t __ballot_sync(uint32_t mask, int p) {
    const uint64_t* slots = emulator::sync_warp(mask, p != 0);
    uint32_t found = 0;
    for (int i = 0; i < 32; ++i)
        if (mask >> i & 1) found |= uint32_t(slots[i]) << i;
    return found;
}

template <class T> uint32_t __match_any_sync(uint32_t mask, T v) {
    const uint64_t own = toSlot(v), *slots = emulator::sync_warp(mask, own);
    uint32_t found = 0;
    for (int i = 0; i < 32; ++i)
        if (mask >> i & 1 && slots[i] == own) found |= 1u << i;
    return found;
}
template <class Better> uint32_t reduceWarp(uint32_t mask, uint32_t x, Better better) {
    const uint64_t* slots = emulator::sync_warp(mask, x);
    for (int i = 0; i < 32; ++i)
        if (mask >> i & 1) x = better(x, uint32_t(slots[i]));
    return x;
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t x) {
    return reduceWarp(mask, x, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t x) {
    return reduceWarp(mask, x, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i)
        result |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
inline int __dp4a(int a, int b, int sum)
{
    for (int i = 0; i < 4; ++i) sum += int(int8_t(a >> 8 * i)) * int(int8_t(b >> 8 * i));
    return sum;
}
template <class T> T atomicAdd(T* p, T x) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); }

// Products and sums that are not fused. Inlined, g++ fuses them on some machines.
__attribute__((noinline)) inline float __fmul_rn(float a, float b) { return a * b; }
__attribute__((noinline)) inline float __fadd_rn(float a, float b) { return a + b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

#define ZINC_EMULATED

#define DYNAMIC_SHARED(name, bytes) static thread_local __align__(128) uint8_t name[bytes]

// A kernel must wait for its inputs, on every path that a thread may take.
inline void waitForInputs() { emulator::block->fibers[emulator::block->current].waited = true; }

// Defines the functions that the host calls: threads of a block, and a launch of the kernel.
#define EARLY_KERNEL(name, Arguments)                                                              \
    static void name(const Arguments& args);                                                       \
    extern "C" int zinc_threads() { return THREADS; }                                              \
    extern "C" int zinc_argument_bytes() { return sizeof(Arguments); }                             \
    extern "C" void zinc_launch(                                                                   \
        const void* bytes, uint32_t x, uint32_t y, uint32_t z, int workers)                        \
    {                                                                                              \
        const Arguments& args = *static_cast<const Arguments*>(bytes);                             \
        emulator::launch({ x, y, z }, THREADS, workers, [&] {                                      \
            name(args);                                                                            \
            if (!emulator::block->fibers[emulator::block->current].waited)                         \
                emulator::fail("a thread ends without waiting for inputs");                        \
        });                                                                                        \
    }                                                                                              \
    static void name(const Arguments& args)

#define KERNEL(name, Arguments)                                                                    \
    static void name##Waited(const Arguments& args);                                               \
    EARLY_KERNEL(name, Arguments)                                                                  \
    {                                                                                              \
        waitForInputs();                                                                           \
        name##Waited(args);                                                                        \
    }                                                                                              \
    static void name##Waited(const Arguments& args)
