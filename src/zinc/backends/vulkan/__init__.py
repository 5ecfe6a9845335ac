"""The Vulkan backend: plans become command buffers of compute shaders written in Slang.

It needs a driver of Vulkan 1.3 and nothing of a GPU's vendor. Kernels are found in the wheel, in
the user's cache or compiled on demand (shaders.py); host calls go through ctypes (vk/).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from zinc.backends.api import (
    CacheLayout,
    Plan,
    StepCounts,
    TensorData,
    wants_batch_invariance,
)
from zinc.backends.vulkan.cache import VulkanCache
from zinc.backends.vulkan.device import Device, open_device
from zinc.backends.vulkan.memory import Memory, Pool, Slice, Staging
from zinc.backends.vulkan.prebuild import Nowhere
from zinc.backends.vulkan.program import VulkanProgram, bucket_of
from zinc.backends.vulkan.shaders import Pipelines
from zinc.core.progress import ProgressBar
from zinc.gpu import lower, packing
from zinc.gpu.dispatch import LOWERINGS, Bucket, DeviceWeight
from zinc.gpu.schedule import all_lowered, schedule, waits
from zinc.ops.registry import OPS
from zinc.ops.step import Step
from zinc.ops.values import RowFormat, State, Weight
from zinc.quant.blocks import GGMLType
from zinc.quant.decode import decode

lower.load()


@functools.cache
def _shared(device: Device) -> tuple[Memory, Staging, Pipelines]:
    """What all backends on a device share."""
    memory = Memory(device)
    return memory, Staging(memory), Pipelines(device)


class VulkanKernels:
    name = "vulkan"

    def row_format(self, type: GGMLType) -> RowFormat:
        return packing.row_format(type)

    def supports(self, kernel: str) -> bool:
        return kernel in LOWERINGS

    def stores(self, kernel: str, format: RowFormat) -> bool:
        return format is RowFormat.Q8_32 and (OPS[kernel].stores_formats or kernel == "linear_glu")

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        return packing.row_bytes(format, cols)


class VulkanBackend(VulkanKernels):
    def __init__(self, device: Device, batch_invariant: bool = False) -> None:
        self.device, self.batch_invariant = device, batch_invariant
        self.features = replace(device.features, batch_invariant=batch_invariant)
        self.memory, self._staging, self.pipelines = _shared(device)
        self._pool = Pool(self.memory)
        self.weights: dict[str, tuple[DeviceWeight | None, Slice]] = {}

    def describe(self) -> str:
        return f"{self.device.candidate}{', batch invariant' if self.batch_invariant else ''}"

    def counts(
        self, plan: Plan, kv_dtype: str, *, tokens: int, outputs: int, sequences: int, keys: int
    ) -> StepCounts:
        bucket = Bucket.of(plan, tokens=tokens, outputs=outputs, sequences=sequences, keys=keys)
        levels = schedule(plan, waits(plan), Nowhere(self.features, kv_dtype), bucket)
        return StepCounts(sum(len(level) for level in levels), len(levels) - 1)

    def expect(self, weights: Iterable[Weight]) -> None:
        self._pool.expect(_packed_bytes(weight) for weight in weights)

    def upload(self, weight: Weight, data: TensorData) -> None:
        if weight.is_vector:
            vector = decode(data.read(), data.type, data.shape)
            self.weights[weight.name] = None, self._place(vector.view(np.uint8).reshape(-1))
            return
        rows_from = None
        if weight.rows_from is not None:
            planes = np.arange(weight.planes, dtype=np.int64) * weight.shape[-2]
            rows_from = np.add.outer(planes, np.array(weight.rows_from, np.int64)).reshape(-1)
        packed = packing.pack(
            data.type, data.read(), weight.planes, weight.rows, weight.cols, rows_from
        )
        place = self._place(packed)
        resident = DeviceWeight(place.address, data.type, weight.planes, weight.rows, weight.cols)
        self.weights[weight.name] = resident, place

    def _place(self, data: packing.Bytes) -> Slice:
        place = self._pool.take(len(data))
        self._staging.write(place.buffer, place.offset, data)
        return place

    @property
    def weight_bytes(self) -> int:
        return self._pool.n_bytes

    def available_bytes(self) -> int | None:
        return self.memory.available_bytes()

    def allocate(self, states: tuple[State, ...], layout: CacheLayout) -> VulkanCache:
        return VulkanCache(states, layout, self.memory, self._staging)

    def compile(self, steps: Iterable[tuple[Plan, Step]], kv_dtype: str) -> None:
        at = Nowhere(self.features, kv_dtype)
        wanted = [
            dispatch.kernel
            for plan, step in steps
            for dispatches in all_lowered(plan.launches, at, bucket_of(plan, step))
            for dispatch in dispatches
        ]
        self.pipelines.prepare(wanted, ProgressBar("compiling kernels"))

    def prepare(self, plan: Plan, cache: Any) -> VulkanProgram:
        return VulkanProgram(
            plan,
            self.device,
            self.features,
            self.memory,
            self._staging,
            self.pipelines,
            self.weights,
            cache,
            ProgressBar("compiling kernels"),
        )


def _packed_bytes(weight: Weight) -> int:
    """What `upload` places."""
    if weight.is_vector:
        return 4 * math.prod(weight.shape)
    return packing.offsets(weight.type, weight.planes * weight.rows, weight.cols).n_bytes


def create(threads: int | None = None, options: Mapping[str, str] | None = None) -> VulkanBackend:
    device = open_device((options or {}).get("device", ""))
    return VulkanBackend(device, wants_batch_invariance(options))


def kernels(options: Mapping[str, str] | None = None) -> VulkanKernels:
    return VulkanKernels()
