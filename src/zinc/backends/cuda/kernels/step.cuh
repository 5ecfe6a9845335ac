// Access to the step header.

#pragma once

#include "arguments/dim_code.h"
#include "prelude.cuh"

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
    switch (dim)
    {
    case TOKENS: return step->tokens;
    case OUTPUTS: return step->outputs;
    case SEQUENCES: return step->sequences;
    default: return 1;
    }
}
