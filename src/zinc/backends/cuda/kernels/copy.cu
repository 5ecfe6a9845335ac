// copy: copies words between memory of the device and pinned memory of the host.

#include "arguments.h"

using Arguments = CopyArguments;

#include "prelude.cuh"

#define THREADS 128

KERNEL(copy, Arguments)
{
    uint i = blockIdx.x * THREADS + threadIdx.x;
    if (i < args.n_words) args.target[i] = args.source[i];
}
