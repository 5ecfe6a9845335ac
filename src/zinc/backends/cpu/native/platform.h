// Calls to the operating system: pages of memory, and features of the processor that only the system knows.
#pragma once

#include <cstddef>

namespace zinc {

// Map `size` zeroed bytes, aligned to at least 4 KiB and to a huge page if they fill one. The system commits
// a page when it is first touched. Throws std::bad_alloc.
std::byte* map_pages(size_t size);

// Free a whole mapping of map_pages; `size` is the size it was mapped with.
void unmap_pages(std::byte* data, size_t size) noexcept;

// Size of the L1 data cache of a core, 0 if the system does not report it.
size_t l1_data_cache_bytes();

// Instruction sets of an x86-64 processor whose registers the system saves. zig's runtime has no
// __builtin_cpu_supports, and older compilers do not know all names.
struct X86Features {
    bool avx2;     // with FMA and F16C
    bool avxvnni;  // with avx2
    bool avx512;   // F, BW, DQ, VL and VNNI
    bool avx512bf16;
    bool is_intel;
};

// The features of this processor; none on another architecture.
const X86Features& x86_features();

// Whether the processor has AMX for 8-bit integers and the system permits its use. On Linux a process must
// request the permission once, for all its threads.
bool may_use_amx_tiles();

// Whether an AArch64 processor has the dot-product instructions of level neon.
bool has_dot_product();

}  // namespace zinc
