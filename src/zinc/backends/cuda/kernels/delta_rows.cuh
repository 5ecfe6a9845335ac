// Loads of the rows of a sequence that delta_rule processes and, with ROLLBACK, stores to the slot of
// the sequence (delta_slot.cuh).

#pragma once

#include "delta_slot.cuh"
#include "floats.cuh"

#if ROLLBACK
#include "arrivals.cuh"
#endif

DEVICE uint keyHeadOf(ARGS, uint head)
{
    return GROUPED != 0 ? head / (args.n_v_heads / args.n_k_heads) : head % args.n_k_heads;
}

/// Returns the address of q (part 0) or k (part 1) of a row. Only k of rows before the step is
/// known: it stands for q, whose products are not stored.
DEVICE uint8_t* headAt(const Span& span, int row, uint part, uint k_head)
{
#if ROLLBACK
    if (row < span.begin) return (uint8_t*)span.keptKey(row, k_head);
#endif
    uint n_k_heads = span.args.n_k_heads;
    uint first = SSM ? span.args.n_v_heads * V_DIM + ((1 - part) * n_k_heads + k_head) * K_DIM
                      : (part * n_k_heads + k_head) * K_DIM;
    return rowAt(span.args.qkv, row, span.args.qkv_stride) + 4 * first;
}

DEVICE float valueAt(const Span& span, int row, uint head, uint col)
{
#if ROLLBACK
    if (row < span.begin) return span.keptValue(row, head)[col];
#endif
    float* x = (float*)rowAt(span.args.qkv, row, span.args.qkv_stride);
    return x[(SSM ? 0 : 2 * span.args.n_k_heads * K_DIM) + head * V_DIM + col];
}

#if ALPHAS > 1
/// Returns the address of alpha of a row.
DEVICE uint8_t* channelsAt(const Span& span, int row, uint head)
{
#if ROLLBACK
    if (row < span.begin) return (uint8_t*)span.keptAlpha(row, head);
#endif
    return rowAt(span.args.alpha, row, span.args.alpha_stride) + 4 * head * K_DIM;
}
#endif

/// Returns alpha, of all channels if they share it, and beta of a row.
DEVICE float2 gatesAt(const Span& span, int row, uint head)
{
#if ROLLBACK
    if (row < span.begin) return float2(*span.keptAlpha(row, head), *span.keptBeta(row, head));
#endif
    float alpha = ((float*)rowAt(span.args.alpha, row, span.args.alpha_stride))[head * ALPHAS];
    if (SSM) return float2(alpha, 0.0f);
    return float2(alpha, ((float*)rowAt(span.args.beta, row, span.args.beta_stride))[head]);
}

#if ROLLBACK
/// Stores the inputs of the last two chunks to the slot, because later steps may process their rows
/// again. The block of COLS columns (group.y) of a value head (group.x) stores its columns of v. One of
/// the blocks with the same key head stores k, alpha and beta. If that overwrites rows which the step
/// has read, it is the block that arrives last, after all others have read them.
DEVICE void keepRows(const Span& span, uint3 group, uint thread)
{
    uint n_k_heads = span.args.n_k_heads, heads_each = span.args.n_v_heads / n_k_heads;
    uint head = group.x, k_head = keyHeadOf(span.args, head);
    uint first_head = GROUPED != 0 ? k_head * heads_each : k_head;
    bool keeps = head == first_head && group.y == 0;
    if (span.start < span.begin && span.last > span.chunk + 1)
    {
        uint n = heads_each * ((V_DIM + COLS - 1) / COLS);
        uint* counter = span.args.arrived + group.z * n_k_heads + k_head;
        keeps = arrivesLast(counter, n, thread);
    }
    int from = max(span.begin, span.start + int(span.last - span.chunk) * CHUNK - CHUNK);
    for (int row = from; row < span.end; row++)
    {
        if (uint(row - span.start) % CHUNK == KEPT) continue;
        uint col = group.y * COLS + thread;
        if (thread < COLS && col < V_DIM)
            span.keptValue(row, head)[col] = valueAt(span, row, head, col);
        if (!keeps) continue;
        float* key = (float*)headAt(span, row, 1, k_head);
        for (uint i = thread; i < K_DIM; i += COLS * SHARE) span.keptKey(row, k_head)[i] = key[i];
        for (uint i = thread; i < heads_each; i += COLS * SHARE)
        {
            uint h = GROUPED != 0 ? first_head + i : first_head + i * n_k_heads;
            float2 gate = gatesAt(span, row, h);
            if (ALPHAS == 1) *span.keptAlpha(row, h) = gate.x;
            *span.keptBeta(row, h) = gate.y;
        }
#if ALPHAS > 1
        for (uint i = thread; i < heads_each * K_DIM; i += COLS * SHARE)
        {
            uint e = i / K_DIM;
            uint h = GROUPED != 0 ? first_head + e : first_head + e * n_k_heads;
            span.keptAlpha(row, h)[i % K_DIM] = ((float*)channelsAt(span, row, h))[i % K_DIM];
        }
#endif
    }
}
#endif
