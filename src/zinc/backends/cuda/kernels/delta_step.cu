// delta_step: convolution, gated delta rule and gated norm of steps with one token per sequence
// (zinc.ops.recurrent_step). A block computes value heads of sequences, one after another. The state S
// is stored transposed: [value heads, V_DIM, K_DIM]. A group of SHARE lanes updates COLUMNS columns of
// S, and each lane holds every SHARE-th float4 of a column. The kernel loads the states of S and of the
// convolution before it waits for its inputs, because only earlier steps have written them.
//   PERSISTENT  1: a block computes every gridDim.x-th head, and loads a column of the next head as
//               soon as it has stored that of the current one (without ROLLBACK); 0: one head
//   TAPS        taps of the convolution, whose state holds the last TAPS - 1 rows of x, oldest first
//   REPEATS     value heads that share a key head
//   GROUPED     these value heads are neighbours
//   ROLLBACK    if not 0, states are those of delta_slot.cuh and causal_conv.cu, which can be rolled
//               back
//   Q8          y is a row of 8-bit blocks

#include "arguments.h"

using Arguments = DeltaStepArguments;

#include "activation.cuh"
#include "decay.cuh"
#include "delta_slot.cuh"
#include "floats.cuh"
#include "mma.cuh"
#include "q8.cuh"
#include "step.cuh"

#define SHARE 8
#define GROUPS (THREADS / SHARE) // groups of lanes that share columns
#define COLUMNS (V_DIM / GROUPS)
#define FOURS (K_DIM / (4 * SHARE))
#define COLS (2 * K_DIM + V_DIM) // columns of q, k and v of the head
#define COLS_EACH ((COLS + THREADS - 1) / THREADS)
#define L2_EPS 1e-6f
#define RING (TAPS - 1 + ROLLBACK)

static_assert(V_DIM % GROUPS == 0 && V_DIM <= 4 * SUBGROUP);
static_assert(!PERSISTENT || !ROLLBACK);

SHARED float4 heads[COLS / 4]; // q, k and v after the convolution
SHARED float outputs[V_DIM];
SHARED float normWeights[V_DIM];
#define STAGES (1 + PERSISTENT) // stages of inputs: for the current head and the next one
SHARED float taps[STAGES][TAPS][COLS];
SHARED float rows[STAGES][TAPS][COLS]; // rows of x, from the state of the convolution and from the step
SHARED float gates[STAGES][V_DIM];     // z
SHARED struct
{
    float alpha, beta, decay, bias;
} numbers[STAGES];
#if ROLLBACK
SHARED float4 kept_keys[KEPT][K_DIM / 4];
SHARED float kept_values[KEPT][V_DIM];
SHARED float2 kept_gates[KEPT]; // decay and beta
#else
SHARED bool read_last; // whether no other value head of the key head still reads its columns
#endif

DEVICE uint colsOf(ARGS) { return 2 * args.n_k_heads * K_DIM + args.n_v_heads * V_DIM; }

/// Returns the column of x that is column `i` of q, k and v of the head.
DEVICE uint columnOf(ARGS, uint head, uint k_head, uint i)
{
    const uint k_cols = args.n_k_heads * K_DIM;
    return i < K_DIM ? k_head * K_DIM + i
        : i < 2 * K_DIM ? k_cols + k_head * K_DIM + i - K_DIM
                        : 2 * k_cols + head * V_DIM + i - 2 * K_DIM;
}

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
    UNROLL for (uint m = 1; m < SHARE; m *= 2) sum += shuffleXor(sum, m);
    return sum;
}

#if ROLLBACK
/// Multiplies a lane's part of a column of S with `decay` and adds a row. key: not normalised.
DEVICE void update(
    float4 (&s)[FOURS], const float4* key, float k_scale, float decay, float beta, float v)
{
    const uint share = threadIdx.x % SHARE;
    float4 known = 0;
    UNROLL for (uint i = 0; i < FOURS; i++)
    {
        s[i] *= decay;
        known += s[i] * key[i * SHARE + share];
    }
    const float d = beta * (v - k_scale * sumOfShares(known)) * k_scale;
    UNROLL for (uint i = 0; i < FOURS; i++) s[i] += key[i * SHARE + share] * d;
}

/// Adds to S the rows of the chunk that earlier steps processed.
DEVICE void applyKept(const Span& span, uint head, uint k_head, float4 (&s)[COLUMNS][FOURS])
{
    const Arguments& args = span.args;
    const uint thread = threadIdx.x, c = thread / SHARE, n = span.begin - span.start;
    if (span.chunk == 0)
        UNROLL for (uint j = 0; j < COLUMNS; j++)
            UNROLL for (uint i = 0; i < FOURS; i++) s[j][i] = 0;
    if (n == 0) return;
    for (uint i = thread; i < n * (K_DIM / 4); i += THREADS)
    {
        const uint t = i / (K_DIM / 4), four = i % (K_DIM / 4);
        kept_keys[t][four]
            = loadAligned<16>((float4*)span.keptKey(span.start + int(t), k_head) + four);
    }
    for (uint i = thread; i < n * V_DIM; i += THREADS)
        kept_values[i / V_DIM][i % V_DIM]
            = span.keptValue(span.start + int(i / V_DIM), head)[i % V_DIM];
    if (thread < n)
    {
        const int row = span.start + int(thread);
        const float alpha = *span.keptAlpha(row, head) + args.decay_bias[head];
        kept_gates[thread]
            = float2(decayOf(args.decay[head], alpha), sigmoid(*span.keptBeta(row, head)));
    }
    __syncthreads();
    for (uint t = 0; t < n; t++)
    {
        const float k_scale = inverseLength((float*)kept_keys[t], thread % SUBGROUP);
        const float2 gate = kept_gates[t];
        UNROLL for (uint j = 0; j < COLUMNS; j++)
            update(s[j], kept_keys[t], k_scale, gate.x, gate.y, kept_values[t][j * GROUPS + c]);
    }
}

/// Stores the inputs of the token's row in the slot. is_first: the block also stores those of the key
/// head.
DEVICE void keepInputs(
    const Span& span, uint head, uint k_head, bool is_first, float alpha, float beta)
{
    const uint thread = threadIdx.x;
    float4* key = (float4*)span.keptKey(span.begin, k_head);
    if (is_first && thread < K_DIM / 4) storeAligned<16>(key + thread, heads[K_DIM / 4 + thread]);
    if (thread < V_DIM)
        span.keptValue(span.begin, head)[thread] = ((float*)heads)[2 * K_DIM + thread];
    if (thread == 0)
    {
        *span.keptAlpha(span.begin, head) = alpha;
        *span.keptBeta(span.begin, head) = beta;
    }
}
#endif

/// Normalises the outputs of the head, multiplies them with silu(z) and stores them. The first warp
/// calls it with four columns per lane.
DEVICE void storeNormalised(ARGS, uint8_t* row, uint head, const float* z, uint lane)
{
    const bool inside = 4 * lane < V_DIM;
    const uint at = inside ? 4 * lane : 0;
    float4 y = float4(outputs[at], outputs[at + 1], outputs[at + 2], outputs[at + 3]);
    const float scale = rsqrt(warpSum(inside ? dot(y, y) : 0.0f) / float(V_DIM) + args.eps);
    UNROLL for (uint i = 0; i < 4; i++)
        y[i] *= scale * normWeights[at + i] * z[at + i] * sigmoid(z[at + i]);
    if (!inside) return;
#if Q8
    storeQ8(row, args.n_v_heads * V_DIM, head * V_DIM + at, y);
#else
    storeFour(row + 4 * head * V_DIM, V_DIM, at, y);
#endif
}

/// A value head of a sequence. The only token of the sequence has the same index.
struct Head
{
    uint sequence, head, k_head, position;
    float* states;
    float* conv_state;

    MEMBER Head(ARGS, uint index)
        : sequence(index / args.n_v_heads)
        , head(index % args.n_v_heads)
        , k_head(GROUPED ? head / REPEATS : head % args.n_k_heads)
        , position(positionOf(args.step, sequence))
    {
        const uint64_t slot = uint(args.step->state_slot[sequence]);
        states = args.state + slot * args.slot_floats;
        conv_state = args.conv_state + slot * (RING * colsOf(args));
    }

    /// Returns the lane's first float4 of S before the step, or after it if `is_next`.
    MEMBER float4* state(ARGS, bool is_next) const
    {
        const uint share = threadIdx.x % SHARE, c = threadIdx.x / SHARE;
        const uint own = (head * V_DIM + c) * K_DIM + 4 * share;
#if ROLLBACK
        const Span span = spanOf(args, states, sequence, sequence + 1);
        return (float4*)(span.halfOf(span.chunk + is_next) + own);
#else
        return (float4*)(states + own);
#endif
    }

    /// Whether the block stores the inputs that value heads of one key head share.
    MEMBER bool isFirst(ARGS) const
    {
        return GROUPED ? head % REPEATS == 0 : head < args.n_k_heads;
    }
};

/// Loads 16 bytes to the registers of `x` if `exists`. With a branch, the compiler would load other
/// registers, and wait for the load to copy them to `x`.
DEVICE void loadIf(float4& x, const float4* p, bool exists)
{
#ifdef ZINC_EMULATED
    if (exists) x = *p;
#else
    asm volatile("{\n\t.reg .pred exists;\n\t"
                 "setp.ne.u32 exists, %5, 0;\n\t"
                 "@exists ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
                 : "l"(p), "r"(uint(exists)));
#endif
}

/// Loads a lane's part of its column j of S, if there is such a head.
DEVICE void loadColumn(float4 (&s)[FOURS], const float4* state, uint j, bool exists)
{
    UNROLL for (uint i = 0; i < FOURS; i++)
        loadIf(s[i], state + j * GROUPS * K_DIM / 4 + i * SHARE, exists);
}

/// Starts the copies of the inputs of the convolution that earlier steps have written. Each thread
/// copies the columns that it multiplies.
DEVICE void copyConvolution(ARGS, const Head& at, uint stage)
{
    UNROLL for (uint j = 0; j < COLS_EACH; j++)
    {
        const uint i = j * THREADS + threadIdx.x;
        if (i >= COLS) break;
        const uint col = columnOf(args, at.head, at.k_head, i);
        UNROLL for (uint t = 0; t < TAPS; t++)
            copySmallAsync<4>(&taps[stage][t][i], args.conv_weight + col * TAPS + t);
        UNROLL for (uint t = 0; t < TAPS - 1; t++)
        {
            const uint place = ROLLBACK ? (at.position + t - (TAPS - 1)) % RING : t;
            copySmallAsync<4>(&rows[stage][t][i], at.conv_state + place * colsOf(args) + col);
        }
    }
    commitCopies();
}

/// Stores the result for column `i` of q, k and v.
DEVICE void convolve(const Head& at, uint stage, uint i)
{
    float sum = taps[stage][TAPS - 1][i] * rows[stage][TAPS - 1][i];
    UNROLL for (uint t = 0; t < TAPS - 1; t++)
    {
        const bool fresh = ROLLBACK ? at.position + t < TAPS - 1 : at.position == 0;
        if (fresh) rows[stage][t][i] = 0;
        sum += taps[stage][t][i] * rows[stage][t][i];
    }
    ((float*)heads)[i] = sum * sigmoid(sum);
}

/// Starts the copies of the inputs that this step has computed for the head, and of its decay.
DEVICE void copyInputs(ARGS, const Head& at, uint stage)
{
    const uint thread = threadIdx.x;
    const float* x = (float*)rowAt(args.x, at.sequence, 4 * args.x_stride);
    UNROLL for (uint j = 0; j < COLS_EACH; j++)
    {
        const uint i = j * THREADS + thread;
        if (i < COLS)
            copySmallAsync<4>(&rows[stage][TAPS - 1][i], x + columnOf(args, at.head, at.k_head, i));
    }
    const float* z = (float*)rowAt(args.z, at.sequence, 4 * args.z_stride) + at.head * V_DIM;
    if (thread < V_DIM) copySmallAsync<4>(&gates[stage][thread], z + thread);
    if (thread == 0)
    {
        const uint8_t* alpha = rowAt(args.alpha, at.sequence, 4 * args.alpha_stride);
        const uint8_t* beta = rowAt(args.beta, at.sequence, 4 * args.beta_stride);
        copySmallAsync<4>(&numbers[stage].alpha, alpha + 4 * at.head);
        copySmallAsync<4>(&numbers[stage].beta, beta + 4 * at.head);
        copySmallAsync<4>(&numbers[stage].decay, args.decay + at.head);
        copySmallAsync<4>(&numbers[stage].bias, args.decay_bias + at.head);
    }
    commitCopies();
}

EARLY_KERNEL(delta_step, Arguments)
{
    const uint thread = threadIdx.x, lane = thread % SUBGROUP, share = thread % SHARE;
    const uint sequences = args.is_one_token ? 1 : args.step->sequences;
    const uint c = thread / SHARE, n_heads = sequences * args.n_v_heads;
    uint index = blockIdx.x;
    if (index >= n_heads) return waitForInputs();
    Head at(args, index);
    float4 s[COLUMNS][FOURS];
    UNROLL for (uint j = 0; j < COLUMNS; j++) loadColumn(s[j], at.state(args, false), j, true);
#if ROLLBACK
    applyKept(spanOf(args, at.states, at.sequence, at.sequence + 1), at.head, at.k_head, s);
#endif
    uint stage = 0;
    copyConvolution(args, at, stage);
    if (thread < V_DIM) normWeights[thread] = ((float*)args.norm)[thread];

    waitForInputs();
    copyInputs(args, at, stage);
    _Pragma("unroll 1") while (true)
    {
        index += gridDim.x;
        const bool is_last = !PERSISTENT || index >= n_heads;
        const Head next = is_last ? at : Head(args, index);
        waitForCopies<0>();
        UNROLL for (uint j = 0; j < COLS_EACH; j++)
        {
            const uint i = j * THREADS + thread;
            if (i >= COLS) break;
            convolve(at, stage, i);
#if ROLLBACK
            const uint col = columnOf(args, at.head, at.k_head, i);
            if (i >= 2 * K_DIM || at.isFirst(args))
                at.conv_state[at.position % RING * colsOf(args) + col]
                    = rows[stage][TAPS - 1][i];
#endif
        }
        __syncthreads();
        const float alpha = numbers[stage].alpha, beta = numbers[stage].beta;
        const float kept = decayOf(numbers[stage].decay, alpha + numbers[stage].bias);
#if ROLLBACK
        const bool stores = at.position % CHUNK == KEPT; // S changes at the end of a chunk only
        const bool fresh = false;
        if (!stores)
            keepInputs(spanOf(args, at.states, at.sequence, at.sequence + 1), at.head, at.k_head,
                at.isFirst(args), alpha, beta);
#else
        const bool stores = true, fresh = at.position == 0;
        // The last value head that shares a key head overwrites its columns, after all others have
        // read them. The atomic completes while the block works. It needs no fence, which would wait
        // for the stores of the previous head: all threads have read the columns before the barrier.
        uint* arrived = args.arrived + (at.sequence * args.n_k_heads + at.k_head);
        const uint n_read = thread == 0 ? atomicAdd(arrived, 1u) : 0;
#endif
        if (!is_last)
        {
            copyConvolution(args, next, 1 - stage);
            copyInputs(args, next, 1 - stage);
        }
        float4* state = at.state(args, true);
        const float4* next_state = next.state(args, false);
        const float q_scale = inverseLength((float*)heads, lane) * rsqrt(float(K_DIM));
        const float k_scale = inverseLength((float*)heads + K_DIM, lane);
        UNROLL for (uint j = 0; j < COLUMNS; j++)
        {
            // Barriers keep the compiler from holding q and k in registers.
            __syncwarp();
            float4 known = 0, sum = 0;
            UNROLL for (uint i = 0; i < FOURS; i++)
            {
                s[j][i] = fresh ? float4(0.0f) : s[j][i] * kept;
                known += s[j][i] * heads[K_DIM / 4 + i * SHARE + share];
            }
            const float v = ((float*)heads)[2 * K_DIM + j * GROUPS + c];
            const float d = sigmoid(beta) * (v - k_scale * sumOfShares(known)) * k_scale;
            __syncwarp();
            UNROLL for (uint i = 0; i < FOURS; i++)
            {
                s[j][i] += heads[K_DIM / 4 + i * SHARE + share] * d;
                sum += s[j][i] * heads[i * SHARE + share];
                if (stores) storeAligned<16>(state + j * GROUPS * K_DIM / 4 + i * SHARE, s[j][i]);
            }
            loadColumn(s[j], next_state, j, !is_last);
            const float y = q_scale * sumOfShares(sum);
            if (share == 0) outputs[j * GROUPS + c] = y;
        }
#if !ROLLBACK
        if (thread == 0)
        {
            read_last = n_read == REPEATS - 1;
            if (read_last) *arrived = 0;
        }
#endif
        __syncthreads();
        if (thread < SUBGROUP)
            storeNormalised(
                args, rowAt(args.y, at.sequence, 4 * args.y_stride), at.head, gates[stage], lane);
#if !ROLLBACK
        UNROLL for (uint j = 0; j < COLS_EACH; j++)
        {
            const uint i = j * THREADS + thread, col = columnOf(args, at.head, at.k_head, i);
            if (i >= COLS || (i < 2 * K_DIM && !read_last)) continue;
            UNROLL for (uint t = 0; t < TAPS - 1; t++)
                at.conv_state[t * colsOf(args) + col] = rows[stage][t + 1][i];
        }
#endif
        if (is_last) break;
        at = next;
        stage = 1 - stage;
    }
}
