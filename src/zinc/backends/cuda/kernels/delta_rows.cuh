// The rows of a sequence that the delta rule runs in a step.
//   ROLLBACK  a slot can be set back to earlier positions (zinc.ops.recurrent_state)
//
// Positions [CHUNK i, CHUNK i + CHUNK) are chunk i. With ROLLBACK, a slot is two halves, of which
// chunk i uses half i mod 2:
//
//   S      [value heads, V_DIM, K_DIM]   the state before the chunk; none is stored for chunk 0
//   k      [CHUNK - 1, key heads, K_DIM] the inputs of its rows, but for the last one, as they came
//   v      [CHUNK - 1, value heads, V_DIM]
//   alpha  [CHUNK - 1, value heads]
//   beta   [CHUNK - 1, value heads]
//
// A step starts from S of its first position's chunk and runs the rows of the chunk before that
// position again, through the same instructions. So it gets the bits that it would have got if the
// rows after that position had never run.

#pragma once

#include "floats.cuh"
#include "step.cuh"

#define CHUNK 16
#define KEPT (CHUNK - 1)

#if ROLLBACK
#include "arrivals.cuh"
#endif

DEVICE uint keyHeadOf(ARGS, uint head)
{
    return GROUPED != 0 ? head / (args.n_v_heads / args.n_k_heads) : head % args.n_k_heads;
}

/// Rows of one sequence by their index in the step. begin, end: those of the step. start: the row
/// to start from, which may be before `begin` and negative.
struct Span
{
    const Arguments& args;
    int begin, end, start;
#if ROLLBACK
    float* slot;
    uint chunk; // that of the row `start`, which is its first
    uint last;  // that of the row `end`

    MEMBER uint chunkOf(int row) const { return chunk + uint(row - start) / CHUNK; }
    MEMBER float* halfOf(uint of) const { return slot + of % 2 * (args.slot_floats / 2); }

    // The kept inputs of a row in the half of its chunk.
    MEMBER float* kept(int row) const
    {
        return halfOf(chunkOf(row)) + args.n_v_heads * (V_DIM * K_DIM);
    }
    MEMBER float* keptKey(int row, uint k_head) const
    {
        return kept(row) + (uint(row - start) % CHUNK * args.n_k_heads + k_head) * K_DIM;
    }
    MEMBER float* keptValue(int row, uint head) const
    {
        return kept(row) + KEPT * args.n_k_heads * K_DIM
            + (uint(row - start) % CHUNK * args.n_v_heads + head) * V_DIM;
    }
    MEMBER float* keptAlpha(int row, uint head) const
    {
        return kept(row) + KEPT * (args.n_k_heads * K_DIM + args.n_v_heads * V_DIM)
            + uint(row - start) % CHUNK * args.n_v_heads + head;
    }
    MEMBER float* keptBeta(int row, uint head) const
    {
        return keptAlpha(row, head) + KEPT * args.n_v_heads;
    }
#endif

    /// Returns `row`, or the last row if it is past that.
    MEMBER int within(int row) const { return min(row, end - 1); }
};

DEVICE Span spanOf(ARGS, float* slot, uint begin, uint end)
{
    Span span{args, int(begin), int(end), int(begin)};
#if ROLLBACK
    uint position = positionOf(args.step, begin);
    span.slot = slot;
    span.start -= int(position % CHUNK);
    span.chunk = position / CHUNK;
    span.last = (position + end - begin) / CHUNK;
#endif
    return span;
}

/// Returns the address of q (part 0) or k (part 1) of a row. Only k of rows before the step is
/// known: it stands for q, whose products are not stored.
DEVICE uint8_t* headAt(const Span& span, int row, uint part, uint k_head)
{
#if ROLLBACK
    if (row < span.begin) return (uint8_t*)span.keptKey(row, k_head);
#endif
    return rowAt(span.args.qkv, row, span.args.qkv_stride)
        + 4 * (part * span.args.n_k_heads + k_head) * K_DIM;
}

DEVICE float valueAt(const Span& span, int row, uint head, uint col)
{
#if ROLLBACK
    if (row < span.begin) return span.keptValue(row, head)[col];
#endif
    float* x = (float*)rowAt(span.args.qkv, row, span.args.qkv_stride);
    return x[2 * span.args.n_k_heads * K_DIM + head * V_DIM + col];
}

/// Returns alpha and beta of a row.
DEVICE float2 gatesAt(const Span& span, int row, uint head)
{
#if ROLLBACK
    if (row < span.begin) return float2(*span.keptAlpha(row, head), *span.keptBeta(row, head));
#endif
    return float2(
        ((float*)rowAt(span.args.alpha, row, span.args.alpha_stride))[head],
        ((float*)rowAt(span.args.beta, row, span.args.beta_stride))[head]);
}

#if ROLLBACK
/// Keeps the inputs of rows of the step that later steps may run again: those of the last two
/// chunks. A block of COLS columns (group.y) of a value head (group.x) keeps those of v. All
/// blocks with the same key head read k: one of them keeps k, alpha and beta. If the step
/// overwrites rows that it read, that is the last of them.
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
            *span.keptAlpha(row, h) = gate.x;
            *span.keptBeta(row, h) = gate.y;
        }
    }
}
#endif
