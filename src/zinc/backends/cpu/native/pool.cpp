#include "pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zinc {
namespace {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// How long a thread spins before it sleeps: longer than the gap between two launches or tokens, but short
// enough to release the core on an idle or crowded machine.
constexpr auto kSpin = std::chrono::microseconds(30);

template <class F>
bool spin_until(F&& ready) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (ready()) return true;
            relax();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

}  // namespace

Pool::Pool(int n_threads) : scratch_(static_cast<size_t>(n_threads < 1 ? 1 : n_threads)) {
    for (size_t i = 0; i < scratch_.size(); ++i) scratch_[i].thread = static_cast<int>(i);
    for (int i = 1; i < size(); ++i) threads_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (auto& t : threads_) t.join();
}

void Pool::worker(int thread) {
    uint32_t seen = 0;
    for (;;) {
        auto ready = [&] { return stop_.load() || epoch_.load() != seen; };
        if (!spin_until(ready)) {
            std::unique_lock lock(mutex_);
            sleepers_.fetch_add(1);
            wake_.wait(lock, ready);
            sleepers_.fetch_sub(1);
        }
        if (stop_) return;
        seen = epoch_.load(std::memory_order_acquire);
        walk(seen, thread);
    }
}

void Pool::run(int n_items, const int* chunks, Run run, void* context) {
    std::lock_guard one_caller(run_mutex_);
    const uint32_t epoch = epoch_.load() + 1;
    const uint64_t first = uint64_t{epoch} << 32;
    {
        std::lock_guard lock(job_mutex_);
        if (n_items > capacity_) {
            // A late worker may still read the old counters, so they are kept until the pool is destroyed.
            if (counters_.items) retired_.push_back(std::move(counters_));
            capacity_ = n_items * 2;
            const auto n = static_cast<size_t>(capacity_);
            counters_ = {std::make_unique<Counter[]>(n), std::make_unique<Lane[]>(n * scratch_.size())};
        }
        Lane* lanes = counters_.lanes.get();
        for (int i = 0; i < n_items; ++i, lanes += size()) {
            // Close the lane before the new total is stored: a late worker that reads the new total then sees
            // the new epoch too.
            for (int t = 0; t < size(); ++t)
                lanes[t].next.store(first | 0xffffffff, std::memory_order_relaxed);
            const auto total = static_cast<uint32_t>(chunks[i]);
            counters_.items[i].total.store(total, std::memory_order_release);
            counters_.items[i].done.store(first, std::memory_order_relaxed);
            for (int t = 0; t < size(); ++t)
                lanes[t].next.store(first + first_chunk(total, t), std::memory_order_release);
        }
        job_ = {counters_.items.get(), counters_.lanes.get(), n_items, run, context};
        epoch_.store(epoch);
    }
    if (sleepers_.load() > 0) {
        std::lock_guard lock(mutex_);
        wake_.notify_all();
    }
    walk(epoch, 0);
    std::exception_ptr error;
    {
        std::lock_guard lock(error_mutex_);
        std::swap(error, error_);
    }
    if (error) std::rethrow_exception(error);
}

void Pool::walk(uint32_t epoch, int thread) {
    const uint64_t first = uint64_t{epoch} << 32;
    Job job;
    {
        std::lock_guard lock(job_mutex_);
        if (epoch_.load() != epoch) return;
        job = job_;
    }
    for (int item = 0; item < job.n_items; ++item) {
        Counter& c = job.counters[item];
        Lane* lanes = job.lanes + int64_t{item} * size();
        const uint32_t total = c.total.load(std::memory_order_acquire);
        const uint64_t all_done = first + total;
        auto run = [&](uint64_t chunk) {
            try {
                job.run(job.context, item, static_cast<int>(chunk & 0xffffffffu), scratch_[thread]);
            } catch (...) {
                std::lock_guard lock(error_mutex_);
                if (!error_) error_ = std::current_exception();
            }
            if (c.done.fetch_add(1) + 1 == all_done && sleepers_.load() > 0) {
                std::lock_guard lock(mutex_);
                wake_.notify_all();
            }
        };
        for (int i = 0; i < size(); ++i) {
            const int lane = (thread + i) % size();
            const uint64_t end = first + first_chunk(total, lane + 1);
            std::atomic<uint64_t>& claim = lanes[lane].next;
            uint64_t next = claim.load(std::memory_order_acquire);
            while (next >> 32 == epoch && next < end) {
                if (!claim.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) continue;
                run(next);
                next = claim.load(std::memory_order_acquire);
            }
            if (next >> 32 != epoch) return;  // the step is over: other threads ran every chunk
        }
        wait_done(c, all_done);
    }
}

void Pool::wait_done(Counter& c, uint64_t target) {
    auto ready = [&] { return static_cast<int64_t>(c.done.load() - target) >= 0; };
    if (ready() || spin_until(ready)) return;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, ready);
    sleepers_.fetch_sub(1);
}

}  // namespace zinc
