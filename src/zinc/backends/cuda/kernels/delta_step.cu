// delta_step: convolution, gated delta rule and gated norm of one token (zinc.ops.recurrent_step). A
// block has one value head. SHARE lanes share a column of its state, which is S transposed
// [value heads, V_DIM, K_DIM], and each has every SHARE-th float4 of its rows. Both states are
// loaded before the kernel waits for its inputs, because only earlier steps have written them.
//   TAPS     of the convolution, whose state has the last TAPS - 1 rows of x, oldest first
//   REPEATS  value heads that share a key head
//   GROUPED  they are neighbours
//   Q8       y is a row of 8-bit blocks

#include "arguments.h"

using Arguments = DeltaStepArguments;

#include "activation.cuh"
#include "arrivals.cuh"
#include "decay.cuh"
#include "floats.cuh"
#include "q8.cuh"
#include "step.cuh"

#define SHARE 8
#define THREADS (V_DIM * SHARE)
#define FOURS (K_DIM / (4 * SHARE))
#define COLS (2 * K_DIM + V_DIM) // of q, k and v of the head
#define L2_EPS 1e-6f

static_assert(COLS <= THREADS && V_DIM <= 4 * SUBGROUP);

SHARED float4 heads[COLS / 4]; // q, k and v after the convolution
SHARED float outputs[V_DIM];

/// A column of the convolution: q, k or v of the block's head.
struct Convolution
{
    uint col;
    float last[TAPS - 1], taps[TAPS], x;

    MEMBER float* stateOf(ARGS, uint t) const
    {
        const uint slot = uint(args.step->state_slot[0]);
        return args.conv_state + uint64_t(slot) * args.conv_slot_floats + t * args.cols + col;
    }

    MEMBER void load(ARGS, uint head, uint k_head, uint i, bool fresh)
    {
        const uint k_cols = args.n_k_heads * K_DIM;
        col = i < K_DIM ? k_head * K_DIM + i
            : i < 2 * K_DIM ? k_cols + k_head * K_DIM + i - K_DIM
                            : 2 * k_cols + head * V_DIM + i - 2 * K_DIM;
        UNROLL for (uint t = 0; t < TAPS; t++) taps[t] = args.conv_weight[col * TAPS + t];
        UNROLL for (uint t = 0; t < TAPS - 1; t++) last[t] = fresh ? 0.0f : *stateOf(args, t);
    }

    MEMBER float result() const
    {
        float sum = taps[TAPS - 1] * x;
        UNROLL for (uint t = 0; t < TAPS - 1; t++) sum += taps[t] * last[t];
        return sum * sigmoid(sum);
    }

    MEMBER void store(ARGS) const
    {
        UNROLL for (uint t = 0; t < TAPS - 1; t++)
            *stateOf(args, t) = t + 1 < TAPS - 1 ? last[min(t + 1, TAPS - 2)] : x;
    }
};

/// Returns the factor that gives a head of q or k in shared memory the length 1.
DEVICE float inverseLength(const float* head, uint lane)
{
    float sum = 0;
    UNROLL for (uint i = 0; i < K_DIM / SUBGROUP; i++)
        sum += head[i * SUBGROUP + lane] * head[i * SUBGROUP + lane];
    return rsqrt(warpSum(sum) + L2_EPS);
}

DEVICE float sumOfShares(float4 x)
{
    float sum = x.x + x.y + x.z + x.w;
    UNROLL for (uint m = 1; m < SHARE; m *= 2) sum += shuffleXor<SHARE>(sum, m);
    return sum;
}

/// Normalises the outputs of the head, multiplies them with silu(z) and stores them. The first warp
/// calls it with four columns a lane.
DEVICE void storeNormalised(ARGS, uint head, float4 z, float4 weight, uint lane)
{
    const bool inside = 4 * lane < V_DIM;
    const uint at = inside ? 4 * lane : 0;
    float4 y = float4(outputs[at], outputs[at + 1], outputs[at + 2], outputs[at + 3]);
    const float sum = warpSum(inside ? dot(y, y) : 0.0f);
    y *= rsqrt(sum / float(V_DIM) + args.eps) * weight;
    UNROLL for (uint i = 0; i < 4; i++) y[i] *= z[i] * sigmoid(z[i]);
    if (!inside) return;
#if Q8
    storeQ8(args.y, args.n_v_heads * V_DIM, head * V_DIM + at, y);
#else
    storeFour(args.y + 4 * head * V_DIM, V_DIM, at, y);
#endif
}

EARLY_KERNEL(delta_step, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP, head = blockIdx.x;
    const uint k_head = GROUPED ? head / REPEATS : head % args.n_k_heads;
    const uint share = thread % SHARE, c = thread / SHARE;
    const bool fresh = positionOf(args.step, 0) == 0;
    float4* state = (float4*)(args.state + uint64_t(args.step->state_slot[0]) * args.slot_floats
        + ((head * V_DIM + c) * K_DIM + 4 * share));
    float4 s[FOURS];
    UNROLL for (uint i = 0; i < FOURS; i++)
    {
        s[i] = loadAligned<16>(state + i * SHARE);
        if (fresh) s[i] = 0;
    }
    Convolution conv;
    if (thread < COLS) conv.load(args, head, k_head, thread, fresh);
    const float decay = args.decay[head], bias = args.decay_bias[head];
    const uint at = min(4 * lane, V_DIM - 4);
    const float4 weight = loadFour(args.norm, V_DIM, at);

    waitForInputs();
    const float alpha = ((float*)args.alpha)[head], beta = ((float*)args.beta)[head];
    const float4 z = loadFour(args.z + 4 * head * V_DIM, V_DIM, at);
    if (thread < COLS)
    {
        conv.x = ((float*)args.x)[conv.col];
        ((float*)heads)[thread] = conv.result();
    }
    __syncthreads();

    const float q_scale = inverseLength((float*)heads, lane) * rsqrt(float(K_DIM));
    const float k_scale = inverseLength((float*)heads + K_DIM, lane);
    const float kept = decayOf(decay, alpha + bias);
    float4 known = 0;
    UNROLL for (uint i = 0; i < FOURS; i++)
    {
        s[i] *= kept;
        known += s[i] * heads[K_DIM / 4 + i * SHARE + share];
    }
    const float v = ((float*)heads)[2 * K_DIM + c];
    const float d = sigmoid(beta) * (v - k_scale * sumOfShares(known)) * k_scale;
    float4 sum = 0;
    UNROLL for (uint i = 0; i < FOURS; i++)
    {
        s[i] += heads[K_DIM / 4 + i * SHARE + share] * d;
        sum += s[i] * heads[i * SHARE + share];
        storeAligned<16>(state + i * SHARE, s[i]);
    }
    const float y = q_scale * sumOfShares(sum);
    if (share == 0) outputs[c] = y;
    __syncthreads();
    if (thread < SUBGROUP) storeNormalised(args, head, z, weight, lane);

    // Value heads that share a key head have read its rows of the state before the last one writes.
    if (thread >= 2 * K_DIM && thread < COLS) conv.store(args);
    if (!arrivesLast(args.arrived + k_head, REPEATS, thread)) return;
    if (thread < 2 * K_DIM) conv.store(args);
}
