// Arithmetic of the chunkwise delta rule: the matrix product and the triangular solve inside a chunk, both in
// register blocks. Every value is summed in the order of the inner dimension, whatever the block sizes, so
// the result of a row does not depend on the number of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../simd.h"
#include "../unroll.h"
#include "math.h"

namespace zinc::ZINC_LEVEL {

// log(1 + e^x) without overflow: max(x, 0) + log(1 + y) with y = e^-|x|. log(1 + y) = 2 atanh(y / (2 + y)) is
// computed by its series, whose argument is at most 1/3.
inline F32x16 softplus(F32x16 x) {
    const F32x16 y = exp(F32x16::zero() - abs(x));
    const F32x16 s = y / (F32x16::set1(2.0f) + y), z = s * s;
    F32x16 p = F32x16::set1(1.0f / 15);
    p = fma(p, z, F32x16::set1(1.0f / 13));
    p = fma(p, z, F32x16::set1(1.0f / 11));
    p = fma(p, z, F32x16::set1(1.0f / 9));
    p = fma(p, z, F32x16::set1(1.0f / 7));
    p = fma(p, z, F32x16::set1(1.0f / 5));
    p = fma(p, z, F32x16::set1(1.0f / 3));
    const F32x16 twice = s + s;
    return max(F32x16::zero(), x) + fma(twice * z, p, twice);
}

// Arguments of out[r][c] = factor * base[r][c] + sum over k of x[r][k] * m[k][c], for a multiple of 16
// columns. `base` has the stride of `out` and may be `out`. With a factor of 0 it is not read. `factors` has
// another factor for each row, times `factor`.
struct Product {
    const float* x;
    int64_t x_stride;
    const float* m;
    int64_t m_stride;
    float* out;
    int64_t out_stride;
    int inner;
    float factor = 0;
    const float* base = nullptr;
    const float* factors = nullptr;
};

inline constexpr bool kManyRegisters = kVectorRegisters >= 32;
inline constexpr int kProductRows = kManyRegisters ? 6 : 2, kProductBlocks = kManyRegisters ? 4 : 2;
// Block for few rows: m is read once from memory, so the block is long in the direction of its rows.
inline constexpr int kWideRows = kManyRegisters ? 3 : 2, kWideBlocks = kManyRegisters ? 8 : 2;

template <int kRows, int kBlocks>
void multiply_block(const Product& p, int row, int col) {
    F32x16 sum[kRows][kBlocks];
    float* out = p.out + row * p.out_stride + col;
    const float* base = p.factor == 0 ? out : p.base + row * p.out_stride + col;
    unroll<kRows>([&](auto r) {
        const F32x16 factor = F32x16::set1(p.factors ? p.factor * p.factors[row + r] : p.factor);
        unroll<kBlocks>([&](auto b) {
            sum[r][b] =
                p.factor == 0 ? F32x16::zero() : factor * F32x16::load(base + r * p.out_stride + 16 * b);
        });
    });
    const float *x = p.x + row * p.x_stride, *m = p.m + col;
    for (int k = 0; k < p.inner; ++k, m += p.m_stride) {
        F32x16 column[kBlocks];
        unroll<kBlocks>([&](auto b) { column[b] = F32x16::load(m + 16 * b); });
        unroll<kRows>([&](auto r) {
            const F32x16 value = F32x16::set1(x[r * p.x_stride + k]);
            unroll<kBlocks>([&](auto b) { sum[r][b] = fma(value, column[b], sum[r][b]); });
        });
    }
    unroll<kRows>(
        [&](auto r) { unroll<kBlocks>([&](auto b) { sum[r][b].store(out + r * p.out_stride + 16 * b); }); });
}

template <int kMaxRows, int kMaxBlocks>
void multiply_in_blocks(const Product& p, int rows, int cols) {
    const int groups = (rows + kMaxRows - 1) / kMaxRows;
    for (int col = 0; col < cols; col += 16 * kMaxBlocks) {
        const int blocks = std::min(kMaxBlocks, (cols - col) / 16);
        for (int group = 0, row = 0; group < groups; ++group) {
            const int size = (rows - row) / (groups - group);
            unroll<kMaxBlocks>([&](auto b) {
                if (blocks != b + 1) return;
                unroll<kMaxRows>([&](auto r) {
                    if (size == r + 1) multiply_block<r + 1, b + 1>(p, row, col);
                });
            });
            row += size;
        }
    }
}

inline void multiply(const Product& p, int rows, int cols) {
    if (rows <= kWideRows)
        multiply_in_blocks<kWideRows, kWideBlocks>(p, rows, cols);
    else
        multiply_in_blocks<kProductRows, kProductBlocks>(p, rows, cols);
}

// Arguments of the triangular solve. Rows of a chunk are numbered from its first position: `old` rows came
// with earlier steps and n are new.
struct Triangle {
    const float *k_by_k, *k_by_q;  // [new][16]: decayed products of k of row j with k and q of the new row
    const float *past_k, *past_q;  // [new][v_dim]: S^T k and S^T q
    const float *whole, *beta;     // [new]: decay since S, and b
    float* d;                      // [16][v_dim]
    int old, n;
    int64_t v_dim;
};

// Computes, for kBlocks x 16 columns starting at `col`,
//   d_t = b_t (v_t - whole_t past_k_t - sum over j < t of k_by_k_tj d_j)
//   o_t = whole_t past_q_t + sum over j <= t of k_by_q_tj d_j
template <int kBlocks, class RowOfV, class RowOfO>
void solve_columns(const Triangle& a, int64_t col, RowOfV&& v, RowOfO&& o) {
    for (int i = 0; i < a.n; ++i) {
        const int t = a.old + i;
        const float *by_k = a.k_by_k + 16 * i, *by_q = a.k_by_q + 16 * i;
        F32x16 known[kBlocks], out[kBlocks];
        unroll<kBlocks>([&](auto b) { known[b] = out[b] = F32x16::zero(); });
        const float* d = a.d + col;
        for (int j = 0; j < t; ++j, d += a.v_dim) {
            const F32x16 to_k = F32x16::set1(by_k[j]), to_q = F32x16::set1(by_q[j]);
            unroll<kBlocks>([&](auto b) {
                const F32x16 dj = F32x16::load(d + 16 * b);
                known[b] = fma(to_k, dj, known[b]);
                out[b] = fma(to_q, dj, out[b]);
            });
        }
        const F32x16 whole = F32x16::set1(a.whole[i]), beta = F32x16::set1(a.beta[i]);
        const F32x16 to_self = F32x16::set1(by_q[t]);
        unroll<kBlocks>([&](auto b) {
            const int64_t at = col + 16 * b;
            const F32x16 past = fma(whole, F32x16::load(a.past_k + i * a.v_dim + at), known[b]);
            const F32x16 dt = beta * (F32x16::load(v(i) + at) - past);
            dt.store(a.d + t * a.v_dim + at);
            out[b] = fma(whole, F32x16::load(a.past_q + i * a.v_dim + at), out[b]);
            fma(to_self, dt, out[b]).store(o(i) + at);
        });
    }
}

}  // namespace zinc::ZINC_LEVEL
