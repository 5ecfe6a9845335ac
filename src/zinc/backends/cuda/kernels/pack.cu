// pack: repacks blocks of weights from the layout of a file into the streams of zinc.gpu.packing. The
// streams of a block consist of words of q, words of h and bytes of s; each thread writes one of these.
//   FORMAT       the weight's type, by its number in GGUF files
//   BLOCK_BYTES  bytes of a block in the file, whose field `qs` starts at byte AT_QS, and so on
//   Q_WORDS, H_WORDS, S_BYTES  sizes of a block in each stream

#include "arguments.h"

using Arguments = PackArguments;

#include "arguments/ggml_type.h"
#include "prelude.cuh"

#define THREADS 256
#define ITEMS (Q_WORDS + H_WORDS + S_BYTES)
#define IS_SIX_BIT (FORMAT == Q3_K || FORMAT == Q4_K || FORMAT == Q5_K)

typedef const uint8_t* Block;

/// Returns 32 bits from an address of any alignment.
DEVICE uint wordAt(Block p) { return p[0] | p[1] << 8 | p[2] << 16 | uint(p[3]) << 24; }

/// Returns word `i` of units of nibbles. Each 32 bytes hold two units, one in low and one in high
/// nibbles; a packed unit has its first 16 elements in the low nibbles of 16 bytes.
DEVICE uint nibbles(Block p, uint i)
{
    Block group = p + 32 * (i / 8) + 4 * (i % 4);
    uint first = wordAt(group), second = wordAt(group + 16);
    bool high = i / 4 % 2;
    return high ? (first >> 4 & 0x0f0f0f0f) | (second & 0xf0f0f0f0)
                : (first & 0x0f0f0f0f) | (second & 0x0f0f0f0f) << 4;
}

/// Returns word `i` of units of two bits. Each 32 bytes hold four units, two words each.
DEVICE uint twoBits(Block p, uint i)
{
    Block half = p + 32 * (i / 8) + 16 * (i % 2);
    uint shift = 2 * (i / 2 % 4), r = 0;
    UNROLL for (uint j = 0; j < 4; j++) r |= (wordAt(half + 4 * j) >> shift & 0x03030303) << 2 * j;
    return r;
}

/// Returns the word of unit `i` of eight units of one bit in 32 bytes.
DEVICE uint oneBit(Block p, uint i)
{
    uint r = 0;
    UNROLL for (uint j = 0; j < 8; j++) r |= (wordAt(p + 4 * j) >> i & 0x01010101) << j;
    return r;
}

/// Returns the word of a unit of 32 bits, which the file stores in the order of the elements.
DEVICE uint bitsInOrder(Block p)
{
    uint bits = wordAt(p), r = 0;
    UNROLL for (uint i = 0; i < 32; i++) r |= (bits >> i & 1) << (8 * (i % 4) + i / 4);
    return r;
}

#if FORMAT == Q3_K
/// Returns the scale of half `half` of unit `j`, which is stored plus 32.
DEVICE uint sixBitValue(Block block, uint j, uint half)
{
    Block p = block + AT_SCALES;
    uint i = 2 * j + half;
    return (p[i % 8] >> 4 * (i / 8) & 15) | (p[8 + i % 4] >> 2 * (i / 4) & 3) << 4;
}
#elif IS_SIX_BIT
/// Returns the scale of unit `j`, or its minimum.
DEVICE uint sixBitValue(Block block, uint j, uint minimum)
{
    Block p = block + AT_SCALES, low = p + 4 * minimum + j % 4;
    if (j < 4) return *low & 63;
    return (p[8 + j % 4] >> 4 * minimum & 15) | *low >> 6 << 4;
}
#endif

#if IS_SIX_BIT
/// Returns byte `i` of the head of a block: d, dmin, then two rows of eight 6-bit numbers, as the low
/// nibbles of each row and nibbles with the high bits of both rows.
DEVICE uint sixBitHead(Block block, uint i)
{
    if (i < 4)
    {
#if FORMAT == Q3_K
        return i < 2 ? block[AT_D + i] : 0;
#else
        return block[(i < 2 ? AT_D : AT_DMIN - 2) + i];
#endif
    }
    uint r = 0, row = (i - 4) / 4;
    UNROLL for (uint k = 0; k < 2; k++)
    {
        uint j = 2 * (i % 4) + k;
        uint high = sixBitValue(block, j, 0) >> 4 | sixBitValue(block, j, 1) >> 4 << 2;
        r |= (row < 2 ? sixBitValue(block, j, row) & 15 : high) << 4 * k;
    }
    return r;
}
#endif

DEVICE uint wordOfQ(Block block, uint i)
{
#if FORMAT == Q6_K
    // Units 0 and 1 of a half are in low nibbles of the file, 2 and 3 in high ones.
    return nibbles(block + AT_QL, i / 16 * 16 + i / 4 % 2 * 8 + i / 8 % 2 * 4 + i % 4);
#elif FORMAT == Q4_K || FORMAT == Q5_K
    return nibbles(block + AT_QS, i);
#elif FORMAT == Q2_K || FORMAT == Q3_K
    return twoBits(block + AT_QS, i);
#else
    return wordAt(block + AT_QS + 4 * i);
#endif
}

DEVICE uint wordOfH(Block block, uint i)
{
#if FORMAT == Q6_K
    return twoBits(block + AT_QH, i);
#elif FORMAT == Q3_K || FORMAT == Q5_K
    return oneBit(block + AT_QH, i);
#elif FORMAT == Q5_0 || FORMAT == Q5_1
    return bitsInOrder(block + AT_QH);
#else
    return 0;
#endif
}

DEVICE uint byteOfS(Block block, uint i)
{
#if IS_SIX_BIT
    return sixBitHead(block, i);
#elif FORMAT == Q2_K || FORMAT == Q6_K // d (and dmin) after the scales
    return i < 16 ? block[AT_SCALES + i] : block[AT_D + i - 16];
#else
    return block[i]; // a block starts with its scales
#endif
}

KERNEL(pack, Arguments)
{
    uint item = blockIdx.x * THREADS + threadIdx.x, i = item % ITEMS;
    uint64_t at = item / ITEMS;
    if (at >= args.n_blocks) return;
    Block block = args.blocks + at * BLOCK_BYTES;
    if (i < Q_WORDS) args.q[at * Q_WORDS + i] = wordOfQ(block, i);
    else if (i < Q_WORDS + H_WORDS)
        args.h[at * H_WORDS + i - Q_WORDS] = wordOfH(block, i - Q_WORDS);
    else args.s[at * S_BYTES + i - Q_WORDS - H_WORDS] = byteOfS(block, i - Q_WORDS - H_WORDS);
}
