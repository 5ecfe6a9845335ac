"""Compiles the kernels of a plan without a device: for wheels, and for machines without a compiler.

Lowerings see addresses and sizes only, so which shaders a plan needs is known from the plan, the
features of a device and the sizes of its steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

from zinc.backends.plans import Launch, Plan, Ref
from zinc.backends.vulkan import SLANG_KERNELS
from zinc.backends.vulkan.limits import DOT, READ
from zinc.backends.vulkan.shaders import for_device, spirv
from zinc.gpu.addresses import NominalAddresses
from zinc.gpu.bucket import SMALLEST_KEYS, Bucket
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.kv_layout import DTYPES
from zinc.gpu.memory import ALIGNMENT
from zinc.ops.values import KVState, RecurrentState, Weight


def buckets(max_tokens: int, max_outputs: int, context: int) -> Iterator[Bucket]:
    """Those of steps of one sequence, and of steps of one token of each sequence."""
    tokens = [n for i in range(32) if (n := 1 << i) <= max_tokens]
    keys = [n for i in range(8, 32) if (n := 1 << i) < 2 * context]
    for n, k in product(tokens, keys):
        for outputs in {0, 1, min(n, max_outputs)}:
            yield Bucket(n, outputs, 1, k, samples=outputs > 0)
        yield Bucket(n, min(n, max_outputs), n, k, samples=True)


def shaders(
    plan: Plan, features: Features, steps: Iterable[Bucket], kv_dtype: str, block_tokens: int = 64
) -> set[KernelVariant]:
    """What the plan runs in those steps, as it is compiled for a device with these features."""
    at = NominalAddresses(features, kv_dtype, block_tokens)
    alike = {
        (_likeness(first), _likeness(second)): (first, second)
        for first, second in pairwise((*plan.launches, plan.launches[0]))
    }
    return {
        for_device(dispatch.kernel, features)
        for bucket in steps
        for pair in alike.values()
        for dispatch in SLANG_KERNELS.lower_all(pair, at, bucket)
    }


def _likeness(launch: Launch) -> tuple[object, ...]:
    """The same for launches that differ in names and places only, as those of most layers do."""
    operands: list[object] = []
    for x in (*launch.inputs, *launch.outputs):
        if isinstance(x, Ref):
            operands.append(replace(x, id=0, offset=x.offset % ALIGNMENT))
        elif isinstance(x, Weight):
            operands.append((x.type, x.shape))
        elif isinstance(x, KVState | RecurrentState):
            operands.append(replace(x, name=""))
        else:
            operands.append(x)
    return (launch.kernel, launch.dim, launch.attrs, *operands)


def device_classes() -> Iterator[Features]:
    """Features that kernels are chosen by, of GPUs there are and of Mesa's Vulkan for CPUs."""
    units = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # tiles change at powers of two
    for subgroup, matrix in product((8, 16, 32, 64), (False, True)):
        for n, narrow in product(units if subgroup > 8 else units[:1], (False, True)):
            # On a CPU no tile depends on units, and it has no matrices.
            if (subgroup > 8 or not matrix) and (matrix or not narrow):
                yield Features(
                    subgroup,
                    cooperative_matrix=matrix,
                    narrow_matrix=narrow,
                    shared_bytes=49152,
                    compute_units=n,
                )


def shipped(plan: Plan, devices: Iterable[Features], context: int) -> set[KernelVariant]:
    """What a plan runs on those devices, with either type of keys and values and in either mode,
    and what measures a device."""
    deepest = Bucket.of(plan, tokens=1, outputs=1, sequences=1, keys=context).keys
    # Only whether the keys are few makes a difference.
    steps = [
        b
        for b in buckets(plan.max_tokens, plan.max_outputs, context)
        if b.keys in (SMALLEST_KEYS, 2 * SMALLEST_KEYS, deepest)
    ]
    found = set()
    for device in devices:
        measures = (KernelVariant("limits", (("KIND", kind),)) for kind in (READ, DOT))
        found |= {for_device(shader, device) for shader in measures}
        for mode, kv_dtype in product((False, True), DTYPES):
            features = replace(device, batch_invariant=mode)
            found |= shaders(plan, features, steps, kv_dtype)
    return found


def build(wanted: Iterable[KernelVariant], folder: Path) -> int:
    """Compiles what `folder` lacks, on all cores; returns the number of all. Raises DeviceError."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        return sum(1 for _ in threads.map(lambda shader: spirv(shader, folder), wanted))
