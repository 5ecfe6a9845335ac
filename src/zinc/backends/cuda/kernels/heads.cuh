// Preparation of a head of q, k or v for attention: RMS norm if it has a weight, and RoPE. A
// subgroup prepares one head, four columns per lane. The head passes through a slot of shared memory,
// because each column is rotated with a partner column of another lane.
//   WIDTH  columns of the widest head
// The kernel defines loadShared and storeShared, which access float4s of the slots.

#include "floats.cuh"
#include "kv.cuh"

DEVICE float4 loadShared(uint i);
DEVICE void storeShared(uint i, float4 x);

#define HEAD_FOURS ((WIDTH + 4 * SUBGROUP - 1) / (4 * SUBGROUP)) // float4s of a head per lane
#define HEAD_FLOAT4S (HEAD_FOURS * SUBGROUP)

/// Columns 4 i to 4 i + 3 of the head in a slot.
DEVICE float4 headFour(uint slot, uint i) { return loadShared(slot * HEAD_FLOAT4S + i); }

/// The rotation of a column: its partner column, and its entry in the token's table of angles.
struct Rotation
{
    uint entry, partner;
    float sign; // sign of the sine for this column
};

DEVICE Rotation rotationOf(uint col)
{
#if NEOX
    bool first = col < ROPE_DIMS / 2;
    uint other = first ? col + ROPE_DIMS / 2 : col - ROPE_DIMS / 2;
    return { first ? col : other, other, first ? -1.0f : 1.0f };
#else
    return { col / 2, col ^ 1, col % 2 == 0 ? -1.0f : 1.0f };
#endif
};

/// Addresses of a head, of the weights of its norm and of its angles. The head is normalised if
/// `weights` is not null or `normalises` is set, and rotated if `table` is not null.
struct HeadSource
{
    uint8_t* row;
    uint width;
    uint8_t* weights;
    bool normalises;
    float* table;
};

/// The columns of a lane with their weights and angles, which are all loaded before they are used.
struct Head
{
    float4 x[HEAD_FOURS], weight[HEAD_FOURS], cosine[HEAD_FOURS], sine[HEAD_FOURS];
    uint width;
    bool normalised, rotated;

    MEMBER Head(const HeadSource& source, uint lane)
    {
        loadWeights(source, lane);
        loadRow(source, lane);
    }

    /// Loads only the weights of the norm, which no kernel of the step writes. Call loadRow afterwards.
    MEMBER void loadWeights(const HeadSource& source, uint lane)
    {
        width = source.width;
        normalised = source.weights != nullptr || source.normalises;
        UNROLL for (uint i = 0; i < HEAD_FOURS; i++)
        {
            uint col = 4 * (i * SUBGROUP + lane);
            weight[i] = 1.0f;
            if (col < width && source.weights != nullptr)
                weight[i] = loadFour(source.weights, width, col);
        }
    }

    MEMBER void loadRow(const HeadSource& source, uint lane)
    {
        const float* table = source.table;
        rotated = ROPE_DIMS > 0 && table != nullptr;
        UNROLL for (uint i = 0; i < HEAD_FOURS; i++)
        {
            uint col = 4 * (i * SUBGROUP + lane);
            x[i] = 0.0f;
            if (col < width) x[i] = loadFour(source.row, width, col);
            cosine[i] = 1.0f;
            sine[i] = 0.0f;
            UNROLL for (uint j = 0; j < 4; j++)
            {
                if (!rotated || col + j >= ROPE_DIMS) continue;
                Rotation rotation = rotationOf(col + j);
                cosine[i][j] = table[rotation.entry];
                sine[i][j] = rotation.sign * table[ROPE_DIMS / 2 + rotation.entry];
            }
        }
    }

    Head() = default;

    MEMBER void normalise(float eps)
    {
        if (!normalised) return;
        float sum = 0;
        UNROLL for (uint i = 0; i < HEAD_FOURS; i++) sum += dot(x[i], x[i]);
        float scale = rsqrt(warpSum(sum) / float(width) + eps);
        UNROLL for (uint i = 0; i < HEAD_FOURS; i++) x[i] *= scale * weight[i];
    }

    /// Rotates the head, which is in its slot.
    MEMBER void rotate(uint slot, uint lane)
    {
        if (!rotated) return;
        UNROLL for (uint i = 0; i < HEAD_FOURS; i++)
            UNROLL for (uint j = 0; j < 4; j++)
            {
                uint col = 4 * (i * SUBGROUP + lane) + j;
                uint partner = col < ROPE_DIMS ? rotationOf(col).partner : col;
                float other = headFour(slot, partner / 4)[partner % 4];
                x[i][j] = x[i][j] * cosine[i][j] + other * sine[i][j];
            }
    }

    MEMBER void share(uint slot, uint lane) const
    {
        UNROLL for (uint i = 0; i < HEAD_FOURS; i++)
            storeShared(slot * HEAD_FLOAT4S + i * SUBGROUP + lane, x[i]);
    }
};

/// Normalises and rotates the heads of a subgroup: `first` and every `step`-th after it, below `n`. The
/// result of a head is in the slot with its number. Heads are processed together, to overlap their
/// latencies.
template <uint COUNT>
DEVICE void prepareHeads(
    Head (&heads)[COUNT], uint first, uint step, uint n, float eps, uint lane)
{
    UNROLL for (uint k = 0; k < COUNT; k++)
        if (first + k * step < n) heads[k].normalise(eps);
    UNROLL for (uint k = 0; k < COUNT; k++)
        if (first + k * step < n) heads[k].share(first + k * step, lane);
    __syncwarp();
    UNROLL for (uint k = 0; k < COUNT; k++)
        if (first + k * step < n) heads[k].rotate(first + k * step, lane);
    __syncwarp();
    UNROLL for (uint k = 0; k < COUNT; k++)
        if (first + k * step < n) heads[k].share(first + k * step, lane);
    __syncwarp();
}

/// Returns a chunk of a prepared head as the cache stores it. The four lanes of 32 columns call it
/// together.
DEVICE Chunk headChunk(uint slot, uint chunk)
{
    uint first = min(2 * chunk, HEAD_FLOAT4S - 2); // lanes past the last column repeat it
    return quantizedChunk(headFour(slot, first), headFour(slot, first + 1));
}
