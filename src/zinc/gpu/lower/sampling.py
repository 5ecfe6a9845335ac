"""Lowering of sample.

Each dispatch reduces chunks of logits to their best candidates, until one workgroup has all
candidates and samples from them. In a step with penalties, a dispatch before them rewrites logits.
"""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import PenalizeArguments, SampleArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import power_of_two, rows
from zinc.ops.sampling import MOST_CANDIDATES

CHUNK = 8192  # candidates of a workgroup
THREADS = 256
# Threads keep their candidates in registers, 8 of them on devices with the fewest registers.
SMALL_CHUNK, MANY_THREADS = 4096, 512


@lowers("sample")
def sample(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    logits, (sampled,) = rows(launch, "logits"), launch.outputs
    if not bucket.samples:
        return []
    n, source, stride = logits.cols, at.ref(logits), logits.stride
    dispatches: list[Dispatch] = []
    if bucket.penalizes:
        penalize = PenalizeArguments(step=at.step, logits=source, stride=stride)
        kernel = KernelVariant("penalize", (("THREADS", THREADS),))
        dispatches.append(Dispatch(kernel, penalize, (bucket.outputs, 1, 1)))
    few = at.features.has_fewest_registers
    chunk, threads = (SMALL_CHUNK, MANY_THREADS) if few else (CHUNK, THREADS)
    is_first = True
    while True:
        chunks = ceil_div(n, chunk)
        if chunks == 1:
            target, target_stride = at.ref(sampled), sampled.stride
        else:
            target_stride = 8 * MOST_CANDIDATES * chunks
            target = at.scratch.take(bucket.outputs * target_stride)
        kernel = KernelVariant(
            "sample",
            (
                ("CHUNK", chunk if chunks > 1 else max(threads, power_of_two(n))),
                ("FIRST", int(is_first)),
                ("LAST", int(chunks == 1)),
                ("THREADS", threads),
                ("TOP", MOST_CANDIDATES),
            ),
        )
        arguments = SampleArguments(
            step=at.step,
            source=source,
            target=target,
            source_stride=stride,
            target_stride=target_stride,
            n=n,
        )
        grid = (chunks, bucket.outputs, 1)
        dispatches.append(Dispatch(kernel, arguments, grid, waits=bool(dispatches)))
        if chunks == 1:
            return dispatches
        n, source, stride, is_first = MOST_CANDIDATES * chunks, target, target_stride, False
