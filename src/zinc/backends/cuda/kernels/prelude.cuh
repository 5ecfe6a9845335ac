// Types and functions that all kernels share: short vectors with operators, half conversions, warp
// functions, and the macro that defines a kernel. The argument structs of zinc.gpu.arguments follow
// at the end.
//
// The same sources compile as C++ for the emulator of the tests. It defines ZINC_EMULATED and what
// CUDA defines.

#pragma once

#include <stdint.h>

#define UNROLL _Pragma("unroll")
#define MEMBER __device__ __forceinline__
#define DEVICE static __device__ __forceinline__
#define SHARED static __shared__
#define ARGS const Arguments& args

#define SUBGROUP 32 // lanes of a warp

// Declares shared memory of a size that the host sets when it starts the kernel
// (`KernelVariant.shared_bytes`).
#ifndef ZINC_EMULATED
#define DYNAMIC_SHARED(name, bytes) extern __shared__ __align__(128) uint8_t name[]
#endif

// MIN_BLOCKS: blocks that an SM must be able to run at once, which limits their registers.
#ifdef MIN_BLOCKS
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, MIN_BLOCKS)
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS)
#endif

// CLUSTER: blocks that form a cluster (cluster.cuh).
#ifdef CLUSTER
#define CLUSTER_BOUNDS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_BOUNDS
#endif

// With programmatic dependent launch (sm_90 and newer), a kernel starts while the kernels that it
// waits for still run. Every thread calls waitForInputs once, before it reads or writes memory that
// another kernel of the step writes or reads. A kernel ends after the kernels that it waits for, so
// waiting for one kernel also waits for all kernels before it.
//
// KERNEL defines a kernel of THREADS threads that waits first. Its body can use `args`, the arguments.
// EARLY_KERNEL defines a kernel whose body calls waitForInputs itself, after it has loaded weights. The
// prefix keeps a kernel's name apart from CUDA's own functions, such as norm.
#ifndef ZINC_EMULATED
#define HAS_EARLY_START (__CUDA_ARCH__ >= 900)

/// Lets dependent kernels start as soon as the last blocks of this kernel are running.
DEVICE void startDependents()
{
#if HAS_EARLY_START
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Waits until the kernels that this kernel depends on have ended.
DEVICE void waitForInputs()
{
#if HAS_EARLY_START
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define EARLY_KERNEL(name, Arguments)                                                              \
    DEVICE void name##Body(const Arguments& args);                                                 \
    extern "C" __global__ void LAUNCH_BOUNDS CLUSTER_BOUNDS                                        \
        zinc_##name(const __grid_constant__ Arguments args)                                        \
    {                                                                                              \
        startDependents();                                                                         \
        name##Body(args);                                                                          \
    }                                                                                              \
    DEVICE void name##Body(const Arguments& args)

#define KERNEL(name, Arguments)                                                                    \
    DEVICE void name##Waited(const Arguments& args);                                               \
    EARLY_KERNEL(name, Arguments)                                                                  \
    {                                                                                              \
        waitForInputs();                                                                           \
        name##Waited(args);                                                                        \
    }                                                                                              \
    DEVICE void name##Waited(const Arguments& args)
#endif

// CUDA's own vectors have neither operators nor subscripts.
#define float2 zinc_float2
#define float4 zinc_float4
#define int4 zinc_int4
#define uint2 zinc_uint2
#define uint3 zinc_uint3
#define uint4 zinc_uint4

typedef unsigned int uint;

template <class T, int N, int ALIGNMENT> struct alignas(ALIGNMENT) VectorStorage;
template <class T, int A> struct alignas(A) VectorStorage<T, 2, A>
{
    T x, y;
};
template <class T, int A> struct alignas(A) VectorStorage<T, 3, A>
{
    T x, y, z;
};
template <class T, int A> struct alignas(A) VectorStorage<T, 4, A>
{
    T x, y, z, w;
};

#ifndef ZINC_EMULATED
template <class T, class U> DEVICE T converted(U x) { return T(x); }
#endif

/// A vector of N numbers, with the operators of its components.
template <class T, int N, int A> struct Vector : VectorStorage<T, N, A>
{
    Vector() = default;
    MEMBER Vector(T all) { UNROLL for (int i = 0; i < N; i++) (*this)[i] = all; }
    MEMBER Vector(T a, T b) { (*this)[0] = a, (*this)[1] = b; }
    MEMBER Vector(T a, T b, T c) { (*this)[0] = a, (*this)[1] = b, (*this)[2] = c; }
    MEMBER Vector(T a, T b, T c, T d)
    {
        (*this)[0] = a, (*this)[1] = b, (*this)[2] = c, (*this)[3] = d;
    }
    template <class U, int B> MEMBER Vector(const Vector<U, 2, B>& a, const Vector<U, 2, B>& b)
    {
        (*this)[0] = a.x, (*this)[1] = a.y, (*this)[2] = b.x, (*this)[3] = b.y;
    }
    template <class U, int B> MEMBER explicit Vector(const Vector<U, N, B>& v)
    {
        UNROLL for (int i = 0; i < N; i++) (*this)[i] = converted<T>(v[i]);
    }
    MEMBER T& operator[](uint i) { return (&this->x)[i]; }
    MEMBER const T& operator[](uint i) const { return (&this->x)[i]; }
};

typedef Vector<float, 2, 8> float2;
typedef Vector<float, 4, 16> float4;
typedef Vector<int, 4, 16> int4;
typedef Vector<uint, 2, 8> uint2;
typedef Vector<uint, 3, 4> uint3;
typedef Vector<uint, 4, 16> uint4;

#define VECTOR_OPERATOR(op)                                                                        \
    template <class T, int N, int A>                                                               \
    DEVICE Vector<T, N, A> operator op(Vector<T, N, A> a, const Vector<T, N, A>& b)                \
    {                                                                                              \
        UNROLL for (int i = 0; i < N; i++) a[i] = a[i] op b[i];                                    \
        return a;                                                                                  \
    }                                                                                              \
    template <class T, int N, int A, class U>                                                      \
    DEVICE Vector<T, N, A> operator op(Vector<T, N, A> a, U b)                                     \
    {                                                                                              \
        UNROLL for (int i = 0; i < N; i++) a[i] = a[i] op T(b);                                    \
        return a;                                                                                  \
    }                                                                                              \
    template <class T, int N, int A, class U>                                                      \
    DEVICE Vector<T, N, A> operator op(U a, Vector<T, N, A> b)                                     \
    {                                                                                              \
        UNROLL for (int i = 0; i < N; i++) b[i] = T(a) op b[i];                                    \
        return b;                                                                                  \
    }                                                                                              \
    template <class T, int N, int A, class U>                                                      \
    DEVICE Vector<T, N, A>& operator op##=(Vector<T, N, A>& a, const U& b)                         \
    {                                                                                              \
        return a = a op b;                                                                         \
    }
VECTOR_OPERATOR(+)
VECTOR_OPERATOR(-)
VECTOR_OPERATOR(*)
VECTOR_OPERATOR(/)
VECTOR_OPERATOR(&)
VECTOR_OPERATOR(|)

#define VECTOR_FUNCTION(name)                                                                      \
    template <class T, int N, int A> DEVICE Vector<T, N, A> name(Vector<T, N, A> a)                \
    {                                                                                              \
        UNROLL for (int i = 0; i < N; i++) a[i] = name(a[i]);                                      \
        return a;                                                                                  \
    }

// Functions of CUDA have further overloads under these names, which would be ambiguous.
#define round zincRound
#define exp zincExp
#define exp2 zincExp2
#define log zincLog
#define log2 zincLog2
#define tanh zincTanh
#define abs zincAbs
#define sqrt zincSqrt
#define rsqrt zincRsqrt
#define max zincMax
#define min zincMin

DEVICE float round(float x) { return rintf(x); } // half to even
DEVICE float clamp(float x, float low, float high) { return fminf(fmaxf(x, low), high); }
DEVICE float mad(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE float exp(float x) { return expf(x); }
DEVICE float exp2(float x) { return exp2f(x); }
DEVICE float log(float x) { return logf(x); }
DEVICE float log2(float x) { return log2f(x); }
DEVICE float tanh(float x) { return tanhf(x); }
DEVICE float abs(float x) { return fabsf(x); }
DEVICE float sqrt(float x) { return sqrtf(x); }
DEVICE float rsqrt(float x) { return rsqrtf(x); }
DEVICE float max(float a, float b) { return fmaxf(a, b); }
DEVICE float min(float a, float b) { return fminf(a, b); }

template <class A, class B> DEVICE decltype(A() + B()) max(A a, B b)
{
    const decltype(A() + B()) x = a, y = b;
    return x > y ? x : y;
}

template <class A, class B> DEVICE decltype(A() + B()) min(A a, B b)
{
    const decltype(A() + B()) x = a, y = b;
    return x < y ? x : y;
}

VECTOR_FUNCTION(round)
VECTOR_FUNCTION(exp)
VECTOR_FUNCTION(tanh)
VECTOR_FUNCTION(abs)

DEVICE float4 max(float4 a, float4 b)
{
    UNROLL for (int i = 0; i < 4; i++) a[i] = max(a[i], b[i]);
    return a;
}

DEVICE float largestOf(float4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }

DEVICE float4 clamp(float4 x, float low, float high)
{
    UNROLL for (int i = 0; i < 4; i++) x[i] = clamp(x[i], low, high);
    return x;
}

DEVICE float4 operator-(const float4& a) { return 0.0f - a; }
DEVICE float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

#ifdef ZINC_EMULATED
DEVICE uint asuint(float x) { return bitCast<uint>(x); }
DEVICE float asfloat(uint x) { return bitCast<float>(x); }
DEVICE float f16tof32(uint bits) { return float(bitCast<_Float16>(uint16_t(bits))); }
DEVICE uint f32tof16(float x) { return bitCast<uint16_t>(_Float16(x)); }
#else
DEVICE uint asuint(float x) { return __float_as_uint(x); }
DEVICE float asfloat(uint x) { return __uint_as_float(x); }

/// Returns the float16 number with these bits.
DEVICE float f16tof32(uint bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(uint16_t(bits)));
    return x;
}

/// Returns the bits of the float16 number nearest to x.
DEVICE uint f32tof16(float x)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

/// A float16 number in memory.
struct half
{
    uint16_t bits;
    half() = default;
    MEMBER explicit half(float x) : bits(uint16_t(f32tof16(x))) {}
    MEMBER explicit operator float() const { return f16tof32(bits); }
};

template <int ALIGNMENT, class T> DEVICE T loadAligned(const T* p) { return *p; }
template <int ALIGNMENT, class T> DEVICE void storeAligned(T* p, const T& x) { *p = x; }

/// Returns x of the lane whose index is this lane's index XOR `mask`. All lanes of the warp call it.
template <class T> DEVICE T shuffleXor(T x, uint mask)
{
    return __shfl_xor_sync(0xffffffffu, x, int(mask));
}

/// Returns whether all lanes of the warp execute this call together.
DEVICE bool isWholeWarp()
{
#ifdef ZINC_EMULATED
    return false;
#else
    return __activemask() == 0xffffffffu;
#endif
}

/// Combines x of `together` neighbouring lanes, a power of two, with `combine`. These lanes call it
/// together. If the whole warp is active, the mask is a constant that names all lanes: for any other
/// mask, the compiler adds code that compares the masks of the lanes and takes longer than the shuffle.
template <uint together, class T, class Combine> DEVICE T reduceNeighbours(T x, Combine combine)
{
    if (isWholeWarp())
    {
        UNROLL for (uint m = 1; m < together; m *= 2) x = combine(x, shuffleXor(x, m));
        return x;
    }
    const uint first = threadIdx.x % SUBGROUP / together * together;
    const uint lanes = (together == SUBGROUP ? 0xffffffffu : (1u << together) - 1) << first;
    UNROLL for (uint m = 1; m < together; m *= 2)
        x = combine(x, __shfl_xor_sync(lanes, x, int(m)));
    return x;
}

/// Returns the sum of x over `together` neighbouring lanes, which call it together.
template <uint together, class T> DEVICE T neighbourSum(T x)
{
    return reduceNeighbours<together>(x, [](T a, T b) { return a + b; });
}

/// Returns the maximum of x over `together` neighbouring lanes, which call it together.
template <uint together, class T> DEVICE T neighbourMax(T x)
{
    return reduceNeighbours<together>(x, [](T a, T b) { return max(a, b); });
}

DEVICE float warpSum(float x)
{
    UNROLL for (uint m = 16; m > 0; m /= 2) x += shuffleXor(x, m);
    return x;
}

DEVICE float warpMax(float x)
{
    UNROLL for (uint m = 16; m > 0; m /= 2) x = max(x, shuffleXor(x, m));
    return x;
}

DEVICE uint warpMax(uint x) { return __reduce_max_sync(0xffffffffu, x); }
DEVICE uint warpMin(uint x) { return __reduce_min_sync(0xffffffffu, x); }

/// Returns the sum of x over the lanes before this lane.
DEVICE uint warpPrefixSum(uint x)
{
    const uint lane = threadIdx.x % SUBGROUP;
    uint sum = x;
    for (uint n = 1; n < SUBGROUP; n *= 2)
    {
        const uint before = __shfl_sync(0xffffffffu, sum, int(lane >= n ? lane - n : lane));
        if (lane >= n) sum += before;
    }
    return sum - x;
}
