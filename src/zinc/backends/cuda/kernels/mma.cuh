// Tensor core products of float16 tiles with float32 sums, and the copies that stage their operands.
//
// `multiplyTiles` is mma.sync.m16n8k16: D[16][8] += A[16][16] * B[16][8]. With q = lane / 4 and
// c = lane % 4, a lane holds these pairs of neighbouring numbers (two float16 numbers per word):
//
//     a[0] = A[q][2c, 2c+1]        a[1] = A[q + 8][2c, 2c+1]
//     a[2] = A[q][2c+8, 2c+9]      a[3] = A[q + 8][2c+8, 2c+9]
//     b[0] = B[2c, 2c+1][q]        b[1] = B[2c+8, 2c+9][q]
//     d[0], d[1] = D[q][2c, 2c+1]  d[2], d[3] = D[q + 8][2c, 2c+1]

//
// `multiplyBytes` is mma.sync.m16n8k32 of signed bytes with integer sums: words have four
// neighbouring numbers, so columns of A and rows of B are 4c to 4c + 3, and these + 16.

#pragma once

#include "prelude.cuh"

#ifdef ZINC_EMULATED

DEVICE void multiplyTiles(float (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    emulator::multiply_tiles(d, a, b0, b1);
}

DEVICE void multiplyBytes(int (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    emulator::multiply_byte_tiles(d, a, b0, b1);
}

DEVICE void loadMatrices(uint (&r)[4], const void* row) { emulator::load_matrices(r, row); }

DEVICE void loadMatricesTransposed(uint (&r)[4], const void* row)
{
    emulator::load_matrices_transposed(r, row);
}

DEVICE void copyAsync(void* shared, const void* global, bool exists)
{
    emulator::copy_async(shared, exists ? global : nullptr);
}

template <uint bytes> DEVICE void copySmallAsync(void* shared, const void* global)
{
    emulator::copy_async(shared, global, bytes);
}

DEVICE void commitCopies() { emulator::commit_copies(); }

template <int pending> DEVICE void waitForCopies() { emulator::wait_for_copies(pending); }

DEVICE uint packHalves(float low, float high) { return f32tof16(low) | f32tof16(high) << 16; }

#else

DEVICE void multiplyTiles(float (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void multiplyBytes(int (&d)[4], const uint (&a)[4], uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Returns the address of shared memory as the instructions below take it.
DEVICE uint sharedAddress(const void* p) { return uint(__cvta_generic_to_shared(p)); }

/// Loads four 8 x 8 matrices of float16 numbers from shared memory. Lane 8 i + j passes the address
/// of row j of matrix i, 16 bytes aligned to 16. r[i] gets row lane / 4 of matrix i, columns
/// 2 (lane % 4) and the next.
DEVICE void loadMatrices(uint (&r)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(sharedAddress(row))
                 : "memory");
}

/// Like `loadMatrices`, but r[i] gets column lane / 4 of matrix i, rows 2 (lane % 4) and the next.
DEVICE void loadMatricesTransposed(uint (&r)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(sharedAddress(row))
                 : "memory");
}

/// Starts a copy of 16 bytes from global to shared memory, both aligned to 16. L2 fetches the whole
/// line of 128 bytes (formats.cuh). If `exists` is false, zeros are stored, and `global`, which must
/// be a valid address, is not read.
DEVICE void copyAsync(void* shared, const void* global, bool exists)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(sharedAddress(shared)), "l"(__cvta_generic_to_global(global)),
                 "r"(exists ? 16 : 0) : "memory");
}

/// Like `copyAsync`, but for 4 or 8 bytes, which must exist.
template <uint bytes> DEVICE void copySmallAsync(void* shared, const void* global)
{
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(sharedAddress(shared)),
                 "l"(__cvta_generic_to_global(global)), "n"(bytes)
                 : "memory");
}

/// Commits the copies of this thread since the last call as one group.
DEVICE void commitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most the last `pending` groups of this thread are incomplete. Other threads see
/// the copies after a barrier.
template <int pending> DEVICE void waitForCopies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Returns two float16 numbers in a word, the first in its low half.
DEVICE uint packHalves(float low, float high)
{
    uint r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

#endif
