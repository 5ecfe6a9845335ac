// What tf32.cuh uses: products of TF32 numbers.
#pragma once

#include "emulator.h"

namespace emulator {

// A lane's operands of mma.sync.m16n8k8 (tf32.cuh).
struct SingleOperands {
    float* d;
    const uint32_t *a, *b;
};

// Returns the TF32 number in a word; its low bits are ignored.
inline float single_number(uint32_t bits) { return bitCast<float>(bits & 0xffffe000u); }

inline void multiply_singles(float* d, const uint32_t* a, const uint32_t* b) {
    SingleOperands mine{d, a, b};
    sync_warp(~0u, reinterpret_cast<uint64_t>(&mine), [](const uint64_t* slots) {
        auto lane = [&](int i) -> SingleOperands& {
            return *reinterpret_cast<SingleOperands*>(slots[i]);
        };
        float a[16][8], b[8][8];
        for (int i = 0; i < WARP; ++i)
            for (int half = 0; half < 2; ++half) {
                const int k = i % 4 + 4 * half;
                b[k][i / 4] = single_number(lane(i).b[half]);
                for (int j = 0; j < 2; ++j)
                    a[i / 4 + 8 * j][k] = single_number(lane(i).a[j + 2 * half]);
            }
        for (int i = 0; i < WARP; ++i)
            for (int j = 0; j < 4; ++j) {
                float sum = 0;
                for (int k = 0; k < 8; ++k) sum += a[i / 4 + 8 * (j / 2)][k] * b[k][2 * (i % 4) + j % 2];
                lane(i).d[j] += sum;
            }
    });
}

}  // namespace emulator
