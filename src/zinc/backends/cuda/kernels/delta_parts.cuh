// How kernels divide the rows of a sequence in a step of many tokens, if its state can be rolled back
// (delta_slot.cuh):
//
//   HEAD  delta_rule  the rest of a chunk that an earlier step has begun
//   SCAN  delta_scan  whole chunks of 2 CHUNK rows, up to the second-to-last chunk
//   TAIL  delta_rule  the remaining rows, whose inputs later steps need
//
// In other steps, delta_rule processes all rows of the sequence (WHOLE).

#pragma once

#include "step.cuh"

#define WHOLE 0
#define HEAD 1
#define SCAN 2
#define TAIL 3

struct PartRows
{
    uint begin, end;
};

/// Returns the rows of a part of a sequence. There may be none.
DEVICE PartRows rowsOfPart(StepHeader* step, uint sequence, uint part)
{
    const uint chunk = 16;
    uint begin = step->seq_start[sequence], end = step->seq_start[sequence + 1];
    if (part == WHOLE || begin == end) return { begin, end };
    uint position = positionOf(step, begin);
    uint head = min(begin + (chunk - position % chunk) % chunk, end);
    uint first = (position + head - begin) / chunk, last = (position + end - begin) / chunk;
    uint tail = head + (last > first ? (last - 1 - first) / 2 * (2 * chunk) : 0);
    if (part == HEAD) return { begin, head };
    return part == SCAN ? PartRows{ head, tail } : PartRows{ tail, end };
}
