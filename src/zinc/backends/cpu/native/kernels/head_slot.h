// State slots of ops whose heads have a matrix S, and the chunks in which they process rows.
//
// Positions [16 i, 16 i + 16) form a chunk, however a prompt was split into steps. The slot holds S as it was
// before the chunk, and k, d and g of the rows of the chunk so far (columns, rows and numbers that S is
// updated with). A row depends on S and on earlier rows of its chunk only. Therefore one code path gives the
// same bits for a whole prompt, a split prompt and single tokens, and decode writes S only once in sixteen
// tokens.
//
// State slot, for each value head:
//
//     S [k_dim][v_dim]  |  k [k_dim][16]  |  d [16][v_dim]  |  g [channels][16]
//
// With the attribute `rollback`, the slot is two of these halves, each for all value heads. Chunk c reads S
// from half c mod 2 and keeps its k, d and g there; its end writes the new S to the other half. So S before a
// chunk stays valid until the next chunk ends, and a sequence can continue from any of the last 16 positions.
#pragma once

#include <algorithm>

#include "../simd.h"
#include "rows.h"

namespace zinc::ZINC_LEVEL {

inline constexpr int kChunk = 16;  // rows of a chunk, one for each lane

// n_v_heads matrices S [k_dim][v_dim] share n_k_heads keys and queries. With the attribute `per_channel`,
// each row of S has a decay (`channels` is k_dim), else all rows have one.
struct HeadShape {
    int n_k_heads, n_v_heads, k_dim, v_dim, channels;
    bool rollback;
    int64_t k_cols() const { return int64_t{n_k_heads} * k_dim; }
    int64_t v_cols() const { return int64_t{n_v_heads} * v_dim; }
    int64_t head_floats() const {
        return int64_t{k_dim} * v_dim + kChunk * (int64_t{k_dim} + v_dim + channels);
    }
    int64_t half_floats() const { return n_v_heads * head_floats(); }
    int64_t slot_floats() const { return rollback ? 2 * half_floats() : half_floats(); }
    // Floats from the start of a slot to the half of a chunk.
    int64_t half_of(int chunk) const { return rollback ? chunk % 2 * half_floats() : 0; }

    void read(const Launch& l, const Attrs& attrs) {
        constexpr int kMaxHeads = 1 << 12, kMaxDim = 1 << 12;
        n_k_heads = whole(l, attrs, "n_k_heads", 1, kMaxHeads);
        n_v_heads = whole(l, attrs, "n_v_heads", 1, kMaxHeads);
        k_dim = whole(l, attrs, "k_dim", 1, kMaxDim);
        v_dim = whole(l, attrs, "v_dim", 1, kMaxDim);
        channels = attrs.get("per_channel", 0) != 0 ? k_dim : 1;
        rollback = attrs.get("rollback", 0) != 0 && whole(l, attrs, "rollback", 1, kChunk) > 0;
        require(l, n_v_heads % n_k_heads == 0, "the value heads must be a multiple of the key heads");
        require(l, v_dim % 16 == 0, "v_dim must be a multiple of 16");
    }

    void check_state(const Launch& l, const Operand& state) const {
        require(l, state.state != nullptr, "needs a state");
        require(l, state.state->floats_per_slot == slot_floats(),
                "the state must hold " + std::to_string(slot_floats()) + " floats per sequence");
    }
};

// The part of a value head in a state slot, in the half of one chunk.
struct HeadSlot {
    float* first;  // the part in the first half
    float *S, *keys, *d, *g;

    void enter(const HeadShape& p, int chunk) {
        S = first + p.half_of(chunk);
        keys = S + int64_t{p.k_dim} * p.v_dim;
        d = keys + int64_t{p.k_dim} * kChunk;
        g = d + int64_t{p.v_dim} * kChunk;
    }

    // Returns S of the chunk after `chunk`.
    float* next(const HeadShape& p, int chunk) const { return first + p.half_of(chunk + 1); }
};

// Calls advance(slot, at, chunk, old, n) for the token rows [at, at + n) of each chunk of a sequence, which
// are rows [old, old + n) of `chunk`. slot.enter is left to `advance`.
template <class Advance>
void for_chunks(const HeadShape& p, const Batch& batch, const StateLayer& states, int sequence, int head,
                Advance&& advance) {
    const int first = batch.seq_start[sequence], last = batch.seq_start[sequence + 1];
    if (first == last) return;
    HeadSlot slot{};
    slot.first = reinterpret_cast<float*>(states.bytes.data) +
                 batch.state_slot[sequence] * states.floats_per_slot + head * p.head_floats();
    if (batch.positions[first] == 0) std::fill_n(slot.first, int64_t{p.k_dim} * p.v_dim, 0.0f);
    for (int at = first; at < last;) {
        const int position = batch.positions[at], old = position % kChunk,
                  n = std::min(kChunk - old, last - at);
        slot.enter(p, position / kChunk);
        advance(slot, at, position / kChunk, old, n);
        at += n;
    }
}

// Decays of the rows of a chunk so far. `to_row` of row t has the product of g over the rows after j up to t
// in lane j, 0 for j > t, and `whole` the product over the whole chunk. Products of factors below one neither
// overflow nor cancel, unlike differences of sums of log g.
struct Decays {
    F32x16 to_row = F32x16::zero();
    float whole = 1;

    void add(int t, float g) {
        to_row = select_lanes(F32x16::set1(1.0f), t, t + 1, to_row * F32x16::set1(g));
        whole = whole * g;
    }
};

}  // namespace zinc::ZINC_LEVEL
