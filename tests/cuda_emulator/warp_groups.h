// What wgmma.cuh uses: barriers in shared memory, bulk copies, and products of warp groups. Copies
// and products take effect as late as allowed, so that a missing wait gives wrong results.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "emulator.h"

namespace emulator {

struct BulkCopy {
    void* to;
    const void* from;
    uint32_t bytes;
};

// A barrier in shared memory, by its address.
struct PhaseBarrier {
    uint32_t expected, arrived, phase;
    uint64_t bytes;  // to be copied in this phase
    std::vector<BulkCopy> copies;

    void end_phase_if_complete() {
        uint64_t started = 0;
        for (const BulkCopy& copy : copies) started += copy.bytes;
        if (arrived < expected || started < bytes) return;
        if (started > bytes) fail("more bytes were copied than a barrier expects");
        for (const BulkCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
        copies.clear();
        bytes = arrived = 0;
        ++phase;
    }
};

// A product of a warp group that was started.
struct GroupProduct {
    float* d;
    const uint32_t* a;
    const uint8_t* b;
    int tiles, group;
};

struct GroupProducts {
    std::vector<GroupProduct> started;
    int groups = 0;
};

// State of the block that the OS thread runs; `number` is the block's.
struct WarpGroups {
    uint64_t number = 0;
    std::map<const void*, PhaseBarrier> barriers;
    std::map<int, GroupProducts> products;  // by thread
    std::map<int, std::pair<uint32_t, uint32_t>> meetings;  // by id: arrived, passed
};

inline WarpGroups& warp_groups() {
    static thread_local WarpGroups state;
    if (state.number != block->number) state = WarpGroups{block->number, {}, {}, {}};
    return state;
}

inline PhaseBarrier& barrier_at(const void* at) {
    auto found = warp_groups().barriers.find(at);
    if (found == warp_groups().barriers.end()) fail("a barrier was not initialised");
    return found->second;
}

inline void init_barrier(const void* at, uint32_t arrivals) {
    warp_groups().barriers[at] = {arrivals, 0, 0, 0, {}};
}

inline void arrive(const void* at, uint32_t bytes) {
    PhaseBarrier& barrier = barrier_at(at);
    if (++barrier.arrived > barrier.expected) fail("more threads arrived than a barrier expects");
    barrier.bytes += bytes;
    if (!barrier.bytes) barrier.end_phase_if_complete();
}

inline void wait_for_phase(const void* at, uint32_t phase) {
    for (;;) {
        PhaseBarrier& barrier = barrier_at(at);
        barrier.end_phase_if_complete();
        if ((barrier.phase ^ phase) & 1) return;
        yield();
    }
}

inline void copy_bulk(void* to, const void* from, uint32_t bytes, const void* at) {
    if ((reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | bytes) % 16)
        fail("a bulk copy is not aligned to 16 bytes");
    barrier_at(at).copies.push_back({to, from, bytes});
}

// Waits until `threads` threads have called it with the same id.
inline void meet(int id, uint32_t threads) {
    auto& [arrived, passed] = warp_groups().meetings[id];
    const uint32_t mine = passed;
    if (++arrived == threads) arrived = 0, ++passed;
    while (warp_groups().meetings[id].second == mine) yield();
}

// A barrier of the first `threads` threads of the block.
inline void sync_threads(uint32_t threads) { meet(0, threads); }

inline void multiply_group(float* d, const uint32_t* a, const uint8_t* b, int tiles) {
    GroupProducts& mine = warp_groups().products[block->current];
    mine.started.push_back({d, a, b, tiles, mine.groups});
}

inline void commit_products() { ++warp_groups().products[block->current].groups; }

// Products complete for all threads of a warp group at once.
inline void wait_for_products(int pending) {
    const int thread = block->current, column = thread % WARP / 4, rows = thread % 4 * 4;
    GroupProducts& mine = warp_groups().products[thread];
    while (!mine.started.empty() && mine.started.front().group < mine.groups - pending) {
        const GroupProduct p = mine.started.front();
        mine.started.erase(mine.started.begin());
        for (int j = 0; j < p.tiles; ++j) {
            const uint8_t* at = p.b + j * GROUP_STRIDE + column * 16 + rows;
            uint32_t b[2];
            std::memcpy(b, at, 4);
            std::memcpy(b + 1, at + MATRIX_BYTES, 4);
            multiply_tiles(p.d + 4 * j, p.a, b[0], b[1]);
        }
    }
    meet(1 + thread / GROUP_THREADS, GROUP_THREADS);
}

}  // namespace emulator
