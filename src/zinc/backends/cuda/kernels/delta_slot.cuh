// The rows of a sequence in a step, and the slot of its state in a delta rule.
//   ROLLBACK  a slot can be rolled back to earlier positions (zinc.ops.recurrent_state)
//
// Positions [CHUNK i, CHUNK i + CHUNK) are chunk i. With ROLLBACK, a slot is two halves, of which
// chunk i uses half i mod 2:
//
//   S      [value heads, V_DIM, K_DIM]   the state before the chunk; none is stored for chunk 0
//   k      [CHUNK - 1, key heads, K_DIM] the unprocessed inputs of its rows, except the last row
//   v      [CHUNK - 1, value heads, V_DIM]
//   alpha  [CHUNK - 1, value heads], with CHANNELS [CHUNK - 1, value heads, K_DIM]
//   beta   [CHUNK - 1, value heads]
//
// A step starts from S of the chunk of its first position. It processes the earlier rows of that chunk
// again, through the same instructions. After a rollback the results are therefore bit-identical to
// those of a sequence in which the rejected rows never ran. (delta_step and delta_rule round
// differently.)

#pragma once

#include "step.cuh"

#define CHUNK 16
#define KEPT (CHUNK - 1)
#if defined(CHANNELS) && CHANNELS
#define ALPHAS K_DIM // numbers of alpha per value head
#else
#define ALPHAS 1
#endif

/// Rows of one sequence, by their index in the step. begin, end: range of the rows of the step. start:
/// first row to process, which may be before `begin` and then negative.
struct Span
{
    const Arguments& args;
    int begin, end, start;
#if ROLLBACK
    float* slot;
    uint chunk; // chunk that begins at the row `start`
    uint last;  // chunk of the row `end`

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
            + (uint(row - start) % CHUNK * args.n_v_heads + head) * ALPHAS;
    }
    MEMBER float* keptBeta(int row, uint head) const
    {
        return kept(row) + KEPT * (args.n_k_heads * K_DIM + args.n_v_heads * (V_DIM + ALPHAS))
            + uint(row - start) % CHUNK * args.n_v_heads + head;
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
