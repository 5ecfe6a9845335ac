// Sums of the blocks of a cluster (kernels/cluster_sums.cuh). Blocks run one after another or on
// several threads of the host; blocks with smaller numbers have started before.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace emulator {

// The sums that a block shares: their address in its shared memory, and a copy of them.
struct SharedSums {
    const uint8_t* memory;
    std::vector<uint8_t> copy;
};

struct ClusterSums {
    std::mutex mutex;
    std::map<std::pair<uint32_t, uint32_t>, SharedSums> sums;  // of a block, for a tile
};

inline ClusterSums& cluster_sums() {
    static ClusterSums all;
    return all;
}

// Copies the sums of the block for a tile. All threads call it after a barrier of the block.
inline void share_sums(uint32_t tile, const uint8_t* memory, uint32_t bytes) {
    if (block->current != 0) return;
    ClusterSums& all = cluster_sums();
    std::lock_guard lock(all.mutex);
    all.sums[{blockIdx.x, tile}] = {memory, std::vector<uint8_t>(memory, memory + bytes)};
}

// Returns the total of a sum over the blocks of the cluster.
inline float cluster_sum(uint32_t blocks, uint32_t tile, const float* sum) {
    ClusterSums& all = cluster_sums();
    // A block's shared sums, once it has shared them.
    const auto of_block = [&](uint32_t number) -> const SharedSums& {
        for (;; yield()) {
            std::lock_guard lock(all.mutex);
            const auto place = all.sums.find({number, tile});
            if (place != all.sums.end()) return place->second;
        }
    };
    const size_t offset = (const uint8_t*)sum - of_block(blockIdx.x).memory;
    const uint32_t first = blockIdx.x / blocks * blocks;
    float total = 0;
    for (uint32_t b = first; b < first + blocks; ++b) {
        float part;
        std::memcpy(&part, of_block(b).copy.data() + offset, 4);
        total += part;
    }
    return total;
}

// Forgets the sums for a tile, which the last block of the cluster has read.
inline void end_sharing(uint32_t blocks, uint32_t tile) {
    if (blockIdx.x % blocks != blocks - 1 || block->current != 0) return;
    ClusterSums& all = cluster_sums();
    std::lock_guard lock(all.mutex);
    for (uint32_t b = blockIdx.x + 1 - blocks; b <= blockIdx.x; ++b) all.sums.erase({b, tile});
}

}  // namespace emulator
