// Allocation of zeroed memory. Small blocks come from the heap. Large blocks are mapped from the system,
// which commits and zeroes a page on first touch, with huge pages if available: a weight matrix is read once
// a token, and with 4 KiB pages the page-table walks would take most of that time.
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "kernel.h"
#include "platform.h"

namespace zinc {
namespace {

constexpr size_t kMapped = size_t{1} << 18;
constexpr std::align_val_t kAlignment{64};

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

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
            std::byte* slab = map_pages(kSize);
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
        unmap_pages(at->first, kSize);
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

const bool prefers_alternating_pages = x86_features().is_intel;

const bool has_large_l1 = l1_data_cache_bytes() >= size_t{48} << 10;

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
        data = map_pages(n);
        return;
    }
    data = static_cast<std::byte*>(::operator new(round_up(n, 64), kAlignment));
    std::memset(data, 0, n);
}

Bytes::~Bytes() {
    if (!data) return;
    if (in_slab) {
        slabs().give_back(data);
    } else if (size >= kMapped) {
        unmap_pages(data, size);
    } else {
        ::operator delete(data, kAlignment);
    }
}

}  // namespace zinc
