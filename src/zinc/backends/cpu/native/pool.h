// A pool of threads that run the launches of a program together.
//
// Every thread visits every launch in order. It claims chunks of the launch until none is left and continues
// when all chunks are done. A thread waits only for chunks in flight, never for another thread, so a thread
// that was preempted between chunks delays nobody. The upper half of a counter is the epoch (step number): a
// late thread that wakes up in the next step cannot claim a chunk of that step by mistake. Epochs wrap
// around.
//
// The chunks of a launch are divided into one lane for each thread; adjacent chunks are in the same lane. A
// thread first takes the chunks of its own lane, then those left in other lanes. So it reads one contiguous
// run of weights, which is up to a third faster than scattered reads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernel.h"

namespace zinc {

class Pool {
public:
    // Called as run(context, item, chunk, scratch) for each item in order and each of its chunks.
    using Run = void (*)(void* context, int item, int chunk, Scratch&);

    explicit Pool(int n_threads);
    ~Pool();
    Pool(const Pool&) = delete;

    int size() const { return static_cast<int>(scratch_.size()); }
    void run(int n_items, const int* chunks, Run run, void* context);

    // Runs f(chunk, scratch) for `chunks` chunks, for work outside a program such as packing weights.
    template <class F>
    void for_chunks(int chunks, F&& f) {
        auto call = [](void* context, int, int chunk, Scratch& s) { (*static_cast<F*>(context))(chunk, s); };
        run(1, &chunks, call, &f);
    }

private:
    struct alignas(64) Counter {
        std::atomic<uint64_t> done{0};
        std::atomic<uint32_t> total{0};
    };
    struct alignas(64) Lane {
        std::atomic<uint64_t> next{0};
    };
    // One counter for each item, and one lane for each item and thread.
    struct Counters {
        std::unique_ptr<Counter[]> items;
        std::unique_ptr<Lane[]> lanes;
    };
    // First chunk of a lane. Lane size() gives the number of chunks.
    uint64_t first_chunk(uint64_t total, int lane) const {
        const auto n = static_cast<uint64_t>(size());
        return (total * static_cast<uint64_t>(lane) + n - 1) / n;
    }
    void worker(int thread);
    void walk(uint32_t epoch, int thread);
    void wait_done(Counter& c, uint64_t target);

    std::vector<Counters> retired_;
    Counters counters_;
    int capacity_ = 0;
    struct Job {
        Counter* counters = nullptr;
        Lane* lanes = nullptr;
        int n_items = 0;
        Run run = nullptr;
        void* context = nullptr;
    };
    Job job_;
    std::mutex run_mutex_;  // one run at a time
    std::mutex job_mutex_;  // guards job_ against a late worker reading it
    std::atomic<uint32_t> epoch_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::mutex error_mutex_;
    std::exception_ptr error_;
    std::vector<Scratch> scratch_;
    std::vector<std::thread> threads_;
};

}  // namespace zinc
