// Access to the step header.

#pragma once

#include "prelude.cuh"

constexpr uint TOKENS = 0, OUTPUTS = 1, SEQUENCES = 2, CONSTANT = 3;

DEVICE uint positionOf(StepHeader* step, uint token) { return uint(((int*)(step + 1))[token]); }

/// Returns the id of a token, which may be one that the previous step sampled.
DEVICE uint idOf(StepHeader* step, uint token)
{
    int id = step->ids[token];
    return step->ids_are_sampled_rows != 0 ? uint(((float2*)step->sampled)[id].x) : uint(id);
}

/// Returns how many rows of a dim the step has.
DEVICE uint rowsOf(StepHeader* step, uint dim)
{
    if (dim == TOKENS) return step->tokens;
    if (dim == OUTPUTS) return step->outputs;
    if (dim == SEQUENCES) return step->sequences;
    return 1;
}
