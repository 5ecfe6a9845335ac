"""Compilation of a plan's kernels without a device, for wheels.

Lowerings depend on sizes and on the device's features only, so the kernels of a plan are known
without the device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
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
    """Yield the buckets of prompts and decode of one sequence, and of decode of many sequences."""
    tokens = [n for i in range(32) if (n := 1 << i) <= max_tokens]
    keys = [n for i in range(8, 32) if (n := 1 << i) < 2 * context]
    for n, k in product(tokens, keys):
        for outputs in {0, 1, min(n, max_outputs)}:
            yield Bucket(n, outputs, 1, k, samples=outputs > 0)
        yield Bucket(n, min(n, max_outputs), n, k, samples=True)


def shaders(
    plan: Plan, features: Features, steps: Iterable[Bucket], kv_dtype: str, block_tokens: int = 64
) -> set[KernelVariant]:
    """Return the kernels that a plan runs in `steps` on a device with `features`."""
    at = NominalAddresses(features, kv_dtype, block_tokens)
    if features.batch_invariant:
        plan = plan.without_alternatives()
    alike = {_likeness(launch): launch for launch in plan.launches}
    return {
        for_device(dispatch.kernel, features)
        for bucket in steps
        for dispatch in SLANG_KERNELS.lower_all(alike.values(), at, bucket)
    }


def _likeness(launch: Launch) -> tuple[object, ...]:
    """Return a key that is equal for launches that differ only in names and offsets.

    The launches of most layers do.
    """
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
    return (launch.kernel, launch.dim, launch.attrs, launch.when, *operands)


def device_classes() -> Iterator[Features]:
    """Yield features that cover existing GPUs, and Mesa's Vulkan driver for CPUs."""
    units = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # tiles change at powers of two
    for subgroup, matrix in product((8, 16, 32, 64), (False, True)):
        for n, narrow in product(units if subgroup > 8 else units[:1], (False, True)):
            # On a CPU tiles do not depend on compute units, and there are no matrices.
            if (subgroup > 8 or not matrix) and (matrix or not narrow):
                yield Features(
                    subgroup,
                    cooperative_matrix=matrix,
                    narrow_matrix=narrow,
                    shared_bytes=49152,
                    compute_units=n,
                )


def shipped(plan: Plan, devices: Iterable[Features], context: int) -> set[KernelVariant]:
    """Return the kernels that a wheel carries for a plan.

    These are the kernels for `devices`, for each KV cache type, with and without batch invariance,
    and the kernels that measure a device.
    """
    deepest = Bucket.of(plan, tokens=1, outputs=1, sequences=1, keys=context).keys
    # Kernels depend only on whether the keys are few.
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
    """Compile the kernels that `folder` lacks, on all cores. Return how many it then has.

    Raises DeviceError.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        return sum(1 for _ in threads.map(lambda shader: spirv(shader, folder), wanted))
