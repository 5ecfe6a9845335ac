#include "platform.h"

#include <cstdint>
#include <new>

#if defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace zinc {

#if defined(_WIN32)

// Large pages need a privilege that users rarely have, so these are pages of 4 KiB.
std::byte* map_pages(size_t size) {
    void* data = VirtualAlloc(nullptr, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (!data) throw std::bad_alloc();
    return static_cast<std::byte*>(data);
}

void unmap_pages(std::byte* data, size_t) noexcept { VirtualFree(data, 0, MEM_RELEASE); }

#else

namespace {

constexpr size_t kPage = size_t{64} << 10;  // a multiple of every page size in use
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

std::byte* map_pages(size_t n) {
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

void unmap_pages(std::byte* data, size_t n) noexcept { munmap(data, round_up(n, kPage)); }

#endif

size_t l1_data_cache_bytes() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    const long size = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    return size > 0 ? static_cast<size_t>(size) : 0;
#elif defined(__APPLE__)
    int64_t size = 0;
    size_t length = sizeof size;
    return sysctlbyname("hw.l1dcachesize", &size, &length, nullptr, 0) == 0 ? static_cast<size_t>(size) : 0;
#else
    return 0;
#endif
}

#if defined(__x86_64__)

namespace {

X86Features find_x86_features() {
    X86Features found{};
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return found;
    found.is_intel = b == 0x756e6547 && d == 0x49656e69 && c == 0x6c65746e;  // "GenuineIntel"
    constexpr unsigned kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
    constexpr unsigned kFirst = kFma | kOsxsave | kAvx | kF16c;  // cpuid 1, ecx
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & kFirst) != kFirst) return found;
    unsigned saved, high;
    asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    constexpr unsigned kYmm = 0x6, kZmm = 0xe6;  // XCR0: the registers that the system saves
    constexpr unsigned kAvx2 = 1u << 5;          // cpuid 7, ebx
    if ((saved & kYmm) != kYmm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx2 = (b & kAvx2) != 0;
    constexpr unsigned kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;  // cpuid 7, ebx
    constexpr unsigned kAvx512 = kF | kDq | kBw | kVl, kVnni = 1u << 11;               // cpuid 7, ecx
    found.avx512 = (saved & kZmm) == kZmm && (b & kAvx512) == kAvx512 && (c & kVnni) != 0;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d)) return found;
    constexpr unsigned kAvxVnni = 1u << 4, kBf16 = 1u << 5;  // cpuid 7.1, eax
    found.avxvnni = found.avx2 && (a & kAvxVnni) != 0;
    found.avx512bf16 = found.avx512 && (a & kBf16) != 0;
    return found;
}

}  // namespace

const X86Features& x86_features() {
    static const X86Features found = find_x86_features();
    return found;
}

#else

const X86Features& x86_features() {
    static const X86Features none{};
    return none;
}

#endif

bool may_use_amx_tiles() {
#if defined(__linux__) && defined(__x86_64__)
    static const bool granted = [] {
        constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;  // cpuid 7, edx
        constexpr int kRequestPermission = 0x1023, kTileData = 18;
        unsigned a, b, c, d;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTile) && (d & kInt8) &&
               syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    }();
    return granted;
#else
    return false;
#endif
}

bool has_dot_product() {
#if defined(__linux__) && defined(__aarch64__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__) && defined(__aarch64__)
    return true;  // every Mac with an Apple processor
#elif defined(_WIN32) && defined(__aarch64__)
    return IsProcessorFeaturePresent(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE);
#else
    return false;
#endif
}

}  // namespace zinc
