// Allocation of zeroed memory. Small blocks come from the heap. Large blocks are mapped from the system,
// which commits and zeroes a page on first touch, with huge pages if available: a weight matrix is read once
// a token, and with 4 KiB pages the page-table walks would take most of that time.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "kernel.h"

namespace zinc {
namespace {

constexpr size_t kMapped = size_t{1} << 18;
constexpr size_t kPage = size_t{64} << 10;  // a multiple of every page size in use
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

std::byte* map(size_t n) {
    const size_t size = round_up(n, kPage);
    const size_t slack = size >= kHugePage ? kHugePage : 0;
    void* base = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    auto* data = static_cast<std::byte*>(base);
    if (slack) {
        const size_t head =
            round_up(reinterpret_cast<size_t>(base), kHugePage) - reinterpret_cast<size_t>(base);
        if (head) munmap(base, head);
        if (slack - head) munmap(data + head + size, slack - head);
        data += head;
#if defined(MADV_HUGEPAGE)
        madvise(data, size, MADV_HUGEPAGE);
#endif
    }
    return data;
}

// A bump allocator over mappings of 32 MiB. No part of a mapping is reused, so the memory is always zero. A
// mapping is released when its last piece is freed.
class Slabs {
public:
    static constexpr size_t kSize = size_t{32} << 20;
    static constexpr size_t kLargestPiece = size_t{8} << 20;

    std::byte* take(size_t n) {
        std::lock_guard lock(mutex_);
        if (!open_ || slabs_[open_].used + n > kSize) {
            open_ = nullptr;
            std::byte* slab = map(kSize);
            slabs_[slab] = {};
            open_ = slab;
        }
        Slab& slab = slabs_[open_];
        ++slab.live;
        return open_ + std::exchange(slab.used, slab.used + round_up(n, 64));
    }

    void give_back(std::byte* piece) {
        std::lock_guard lock(mutex_);
        const auto at = std::prev(slabs_.upper_bound(piece));
        if (--at->second.live > 0) return;
        if (at->first == open_) open_ = nullptr;
        munmap(at->first, kSize);
        slabs_.erase(at);
    }

private:
    struct Slab {
        size_t used = 0, live = 0;
    };
    std::mutex mutex_;
    std::map<std::byte*, Slab> slabs_;
    std::byte* open_ = nullptr;
};

// Never destroyed: the interpreter may free tensors after this library's static objects are gone.
Slabs& slabs() {
    static auto* all = new Slabs;
    return *all;
}

}  // namespace

const bool prefers_alternating_pages =
#if defined(__x86_64__)
    (__builtin_cpu_init(), __builtin_cpu_is("intel"));
#else
    false;
#endif

const bool has_large_l1 =
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    sysconf(_SC_LEVEL1_DCACHE_SIZE) >= 48 << 10;
#else
    false;
#endif

Bytes Bytes::for_model(size_t n) {
    if (n == 0 || n > Slabs::kLargestPiece) return Bytes(n);
    Bytes bytes;
    bytes.data = slabs().take(n);
    bytes.size = n;
    bytes.in_slab = true;
    return bytes;
}

Bytes::Bytes(size_t n) : size(n) {
    if (n == 0) return;
    if (n > SIZE_MAX / 2) throw std::bad_alloc();
    if (n >= kMapped) {
        data = map(n);
        return;
    }
    data = static_cast<std::byte*>(std::aligned_alloc(64, round_up(n, 64)));
    if (!data) throw std::bad_alloc();
    std::memset(data, 0, n);
}

Bytes::~Bytes() {
    if (!data) return;
    if (in_slab) {
        slabs().give_back(data);
    } else if (size >= kMapped) {
        munmap(data, round_up(size, kPage));
    } else {
        std::free(data);
    }
}

}  // namespace zinc
