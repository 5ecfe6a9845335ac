"""Compilation of a plan's kernels without a device, for wheels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

from zinc.backends.plans import Plan
from zinc.backends.vulkan import SLANG_KERNELS
from zinc.backends.vulkan.fragments import KERNEL as FRAGMENTS
from zinc.backends.vulkan.limits import DOT, READ
from zinc.backends.vulkan.shaders import for_device, spirv
from zinc.gpu import ahead
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.features import MATRIX_SHAPES, SQUARE, Features
from zinc.gpu.kv_layout import DTYPES

_BLOCK_TOKENS = 64  # tokens of a block of the KV cache, the same for every model


def shaders(
    plan: Plan, features: Features, steps: Iterable[Bucket], kv_dtype: str
) -> set[KernelVariant]:
    """Return the kernels that a plan runs in `steps` on a device with `features`."""
    found = ahead.kernels(SLANG_KERNELS, plan, features, steps, kv_dtype, _BLOCK_TOKENS)
    return {for_device(kernel, features) for kernel in found}


def device_classes() -> Iterator[Features]:
    """Yield features that cover existing GPUs, and Mesa's Vulkan driver for CPUs."""
    units = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # tiles change at powers of two
    for subgroup, matrix in product((8, 16, 32, 64), (False, True)):
        for n, narrow in product(units if subgroup > 8 else units[:1], (False, True)):
            # On a CPU tiles do not depend on compute units, and there are no matrices. Subgroups of
            # 16 are Intel's.
            if subgroup != 16 and (subgroup > 8 or not matrix) and (matrix or not narrow):
                for fragments in (False, True) if narrow and subgroup == 32 else (False,):
                    yield Features(
                        subgroup,
                        cooperative_matrix=matrix,
                        narrow_matrix=narrow,
                        mma_fragments=fragments,
                        shared_bytes=49152,
                        compute_units=n,
                    )
    for n, registers, shape in product(units, (64, 128), (None, *MATRIX_SHAPES[1:])):
        # Only Xe2 and its successors, with 128 registers per lane, have matrices of 16 columns.
        if shape is None or (shape.n == 16) == (registers == 128):
            yield Features(
                16,
                cooperative_matrix=shape is not None,
                matrix=shape or SQUARE,
                registers=registers,
                shared_bytes=49152,
                compute_units=n,
            )


def shipped(plan: Plan, devices: Iterable[Features], context: int) -> set[KernelVariant]:
    """Return the kernels that a wheel carries for a plan.

    These are the kernels for `devices`, for each KV cache type, with and without batch invariance,
    and the kernels that measure a device.
    """
    steps = ahead.distinct_buckets(plan, context)
    found = set()
    for device in devices:
        measures = [KernelVariant("limits", (("KIND", kind),)) for kind in (READ, DOT)]
        if device.narrow_matrix:
            measures.append(FRAGMENTS)
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
