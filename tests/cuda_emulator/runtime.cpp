// Launches of the emulator (emulator.h), compiled once for all kernels.
#include <atomic>
#include <memory>
#include <thread>

#include "emulator.h"  // its macros stand for CUDA's keywords, which system headers use

using namespace emulator;

namespace {

// Runs the current thread until it waits or ends.
__attribute__((noinline)) void resume() {
    Block& b = *block;
    Fiber& f = b.fibers[b.current];
    if (_setjmp(b.scheduler)) return;
    if (f.entered) _longjmp(f.place, 1);
    f.entered = true;
    setcontext(&f.context);
}

void start() {
    Block& b = *block;
    b.kernel(b.context);
    Fiber& f = b.fibers[b.current];
    f.done = true;
    --b.live;
    b.warps[b.current / WARP].live &= ~(1u << b.current % WARP);
    _longjmp(b.scheduler, 1);
}

void run_block(Block& b) {
    static thread_local uint64_t n_blocks = 0;
    block = &b;
    b.number = ++n_blocks;
    b.live = b.n_threads;
    b.waiting = 0;
    b.barrier = 0;
    for (auto& w : b.warps) w = Warp{{}, 0};
    for (int i = 0; i < b.n_threads; ++i) {
        Fiber& f = b.fibers[i];
        f.done = f.entered = f.waited = false;
        f.copies.clear();
        f.groups = 0;
        b.warps[i / WARP].live |= 1u << i % WARP;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = STACK_BYTES;
        f.context.uc_link = nullptr;
        makecontext(&f.context, start, 0);
    }
    for (long idle = 0; b.live > 0; ++idle) {
        for (b.current = 0; b.current < b.n_threads; ++b.current)
            if (!b.fibers[b.current].done) resume();
        release_barrier(b);
        if (idle > MAX_TURNS) fail("threads wait for others that never come");
    }
}

}  // namespace

namespace emulator {

void launch(
    dim3 grid, int n_threads, int n_workers, void (*kernel)(const void*), const void* context) {
    const uint64_t n_blocks = uint64_t(grid.x) * grid.y * grid.z;
    std::atomic<uint64_t> next{0};
    auto work = [&] {
        Block b;
        b.n_threads = n_threads;
        b.fibers.resize(n_threads);
        // The stacks are mostly never touched, so they must not be zeroed.
        const auto stacks = std::make_unique_for_overwrite<char[]>(n_threads * STACK_BYTES);
        for (int i = 0; i < n_threads; ++i) b.fibers[i].stack = &stacks[i * STACK_BYTES];
        b.warps.resize((n_threads + WARP - 1) / WARP);
        b.kernel = kernel;
        b.context = context;
        b.grid = grid;
        for (uint64_t i; (i = next++) < n_blocks;) {
            b.index = {uint32_t(i % grid.x), uint32_t(i / grid.x % grid.y), uint32_t(i / grid.x / grid.y)};
            run_block(b);
        }
    };
    const int n_used = int(std::min<uint64_t>(n_workers, n_blocks));
    std::vector<std::thread> workers;
    for (int i = 1; i < n_used; ++i) workers.emplace_back(work);
    work();
    for (auto& w : workers) w.join();
}

}  // namespace emulator
