// Calls to the operating system: pages of memory, and facts about the processor that only it can tell.
#pragma once

#include <cstddef>

namespace zinc {

// Map `size` zeroed bytes, aligned to at least 4 KiB and to a huge page if they fill one. The system commits
// a page when it is first touched. Throws std::bad_alloc.
std::byte* map_pages(size_t size);

// Free a whole mapping of map_pages; `size` is the size it was mapped with.
void unmap_pages(std::byte* data, size_t size) noexcept;

// Size of the first-level data cache of a core, 0 if the system does not tell.
size_t l1_data_cache_bytes();

// Whether the processor has AMX tiles of 8-bit integers and the system lets this process use them. Linux asks
// each process to request them, for all its threads.
bool may_use_amx_tiles();

// Whether an AArch64 processor has the dot-product instructions of level neon.
bool has_dot_product();

}  // namespace zinc
