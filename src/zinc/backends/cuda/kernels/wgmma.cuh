// Products of warp groups (wgmma, compute capability 9.0), and the barriers and bulk copies that feed
// them. A warp group is four warps; the first warp's number is a multiple of four.
//
// `multiplyGroup` starts D[64][N] += A[64][16] * B[16][N]. Warp w of the group holds rows 16 w to
// 16 w + 15 of A and D, as `multiplyTiles` holds them (mma.cuh); d[j] has columns 8 j to 8 j + 7. B
// lies in shared memory as two matrices of 8 rows for every 8 columns. In a matrix each column is
// 16 contiguous bytes; the second matrix follows the first, and those of the next 8 columns follow
// after GROUP_STRIDE bytes.
//
// A product reads A and writes D until `waitForProducts` has returned.

#pragma once

#include "mma.cuh"

#define GROUP_THREADS 128
#define MATRIX_BYTES 128
#define GROUP_STRIDE 2048

/// A barrier in shared memory. A phase ends when the expected threads have arrived and the expected
/// bytes have been copied. Phases are numbered from 0.
typedef uint64_t Barrier;

#ifdef ZINC_EMULATED

#include "warp_groups.h"

DEVICE void initBarrier(Barrier* barrier, uint arrivals)
{
    emulator::init_barrier(barrier, arrivals);
}

DEVICE void publishBarriers() {}
DEVICE void arrive(Barrier* barrier) { emulator::arrive(barrier, 0); }
DEVICE void arriveExpecting(Barrier* barrier, uint bytes) { emulator::arrive(barrier, bytes); }
DEVICE void waitForPhase(Barrier* barrier, uint phase) { emulator::wait_for_phase(barrier, phase); }

DEVICE void copyBulk(void* shared, const void* global, uint bytes, Barrier* barrier)
{
    emulator::copy_bulk(shared, global, bytes, barrier);
}

template <uint registers> DEVICE void releaseRegisters() {}
template <uint registers> DEVICE void claimRegisters() {}
template <uint threads> DEVICE void syncThreads() { emulator::sync_threads(threads); }

DEVICE void fenceProducts() {}
DEVICE void commitProducts() { emulator::commit_products(); }
template <int pending> DEVICE void waitForProducts() { emulator::wait_for_products(pending); }

/// A place of B in shared memory.
typedef const uint8_t* MatrixPlace;

DEVICE MatrixPlace placeOfMatrix(const uint8_t* b) { return b; }
DEVICE MatrixPlace shifted(MatrixPlace b, uint bytes) { return b + bytes; }

template <int TILES>
DEVICE void multiplyGroup(float (&d)[TILES][4], const uint (&a)[4], MatrixPlace b)
{
    emulator::multiply_group(&d[0][0], a, b, TILES);
}

#else

/// Makes a barrier whose phases end after `arrivals` calls of `arrive` or `arriveExpecting`.
DEVICE void initBarrier(Barrier* barrier, uint arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(arrivals));
}

/// Makes new barriers visible to copies. Other threads see them after `__syncthreads`.
DEVICE void publishBarriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void arrive(Barrier* barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(sharedAddress(barrier)) : "memory");
}

/// Arrives, and lets the phase wait for `bytes` more bytes of copies.
DEVICE void arriveExpecting(Barrier* barrier, uint bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)),
                 "r"(bytes)
                 : "memory");
}

/// Waits until a phase has ended. The phase before it must have ended already.
DEVICE void waitForPhase(Barrier* barrier, uint phase)
{
    uint ended = 0;
    while (!ended)
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(ended)
                     : "r"(sharedAddress(barrier)), "r"(phase & 1)
                     : "memory");
}

/// Starts a copy of `bytes` bytes from global to shared memory, which counts for the current phase
/// of `barrier`. Addresses and `bytes` are multiples of 16.
DEVICE void copyBulk(void* shared, const void* global, uint bytes, Barrier* barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(sharedAddress(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(sharedAddress(barrier))
                 : "memory");
}

/// Lowers the registers of each thread of this warp group to `registers`.
template <uint registers> DEVICE void releaseRegisters()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Raises the registers of each thread of this warp group to `registers`. Waits until other warp groups
/// have released enough.
template <uint registers> DEVICE void claimRegisters()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Synchronises the first `threads` threads of the block, as `__syncthreads` does for all threads.
template <uint threads> DEVICE void syncThreads()
{
    asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
}

/// Orders writes to A and D of this thread before the products that follow.
DEVICE void fenceProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Commits the products since the last call as one group.
DEVICE void commitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most the last `pending` groups are incomplete.
template <int pending> DEVICE void waitForProducts()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// A place of B in shared memory: the low half of its descriptor without swizzle, which has the address
/// and the distance of the two matrices of 8 columns. The high half has the distance of neighbouring
/// groups of 8 columns (PTX ISA, "Matrix descriptor").
struct MatrixPlace
{
    uint low;

    MEMBER uint64_t descriptor() const { return low | uint64_t(GROUP_STRIDE >> 4) << 32; }
};

DEVICE MatrixPlace placeOfMatrix(const uint8_t* b)
{
    const uint address = sharedAddress(b) & 0x3ffffu; // without the rank of the block in its cluster
    return { address >> 4 | (MATRIX_BYTES >> 4) << 16 };
}

DEVICE MatrixPlace shifted(MatrixPlace b, uint bytes) { return { b.low + (bytes >> 4) }; }

// clang-format off
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
    "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64 REGISTERS_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
    "%62, %63"
#define REGISTERS_128 REGISTERS_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, " \
    "%94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, " \
    "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, " \
    "%121, %122, %123, %124, %125, %126, %127"
// clang-format on

#define SUMS_1(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SUMS_4(j) SUMS_1(j), SUMS_1(j + 1), SUMS_1(j + 2), SUMS_1(j + 3)
#define SUMS_16(j) SUMS_4(j), SUMS_4(j + 4), SUMS_4(j + 8), SUMS_4(j + 12)
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor())

DEVICE void multiplyGroup(float (&d)[4][4], const uint (&a)[4], MatrixPlace b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{" REGISTERS_16 "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                 : SUMS_4(0)
                 : OPERANDS);
}

DEVICE void multiplyGroup(float (&d)[8][4], const uint (&a)[4], MatrixPlace b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{" REGISTERS_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : SUMS_4(0), SUMS_4(4)
                 : OPERANDS);
}

DEVICE void multiplyGroup(float (&d)[16][4], const uint (&a)[4], MatrixPlace b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{" REGISTERS_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                 : SUMS_16(0)
                 : OPERANDS);
}

DEVICE void multiplyGroup(float (&d)[32][4], const uint (&a)[4], MatrixPlace b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{" REGISTERS_128 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 0;"
                 : SUMS_16(0), SUMS_16(16)
                 : OPERANDS);
}

#undef SUMS_1
#undef SUMS_4
#undef SUMS_16
#undef OPERANDS

#endif
