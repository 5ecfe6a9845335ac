"""Where the operands of a plan are in device memory: what lowerings ask."""

from __future__ import annotations

from collections.abc import Mapping

from zinc.backends.api import Ref
from zinc.backends.vulkan.cache import VulkanCache
from zinc.backends.vulkan.memory import Buffer, Memory, Slice, rounded
from zinc.gpu.dispatch import DeviceKV, DeviceWeight, Features
from zinc.ops.values import Constant, KVState, RecurrentState, Weight

SCRATCH_BYTES = 16 << 20


class Ring:
    """Offsets into scratch memory of `size` bytes: who gets bytes that an earlier launch had waits
    for it."""

    def __init__(self, size: int = 0) -> None:
        self.size, self._used = size, 0

    def holding(self, n_bytes: int) -> Ring:
        """A ring, of other memory when this one has not so much, in which so many bytes fit."""
        fits = rounded(n_bytes) <= self.size
        return self if fits else Ring(max(SCRATCH_BYTES, 2 * rounded(n_bytes)))

    def take(self, n_bytes: int) -> int:
        """The offset of so many bytes."""
        n_bytes = rounded(n_bytes)
        if self._used + n_bytes > self.size:
            self._used = 0
        offset, self._used = self._used, self._used + n_bytes
        return offset


class Operands:
    """Implements zinc.gpu.schedule.Placed.

    `step` is where the data of the step is that is recorded next.
    """

    def __init__(
        self,
        features: Features,
        memory: Memory,
        arena: Buffer,
        step: int,
        weights: Mapping[str, tuple[DeviceWeight | None, Slice]],
        constants: Mapping[Constant, Slice],
        cache: VulkanCache,
    ) -> None:
        self.features = features
        self.step = step
        self._memory, self._arena = memory, arena
        self._weights, self._constants, self._cache = weights, constants, cache
        self._scratch = memory.buffer(256)
        self._ring = Ring()
        self._outgrown: list[Buffer] = []
        self.taken: list[tuple[int, int]] = []

    def ref(self, ref: Ref) -> int:
        return self._arena.address + ref.offset

    def weight(self, weight: Weight) -> DeviceWeight:
        found, _ = self._weights[weight.name]
        assert found is not None, f"{weight.name} is a vector"
        return found

    def vector(self, weight: Weight | Constant) -> int:
        if isinstance(weight, Constant):
            return self._constants[weight].address
        return self._weights[weight.name][1].address

    def kv(self, state: KVState) -> DeviceKV:
        return self._cache.layers[state.name]

    def recurrent(self, state: RecurrentState) -> int:
        return self._cache.recurrent[state.name]

    def scratch(self, n_bytes: int) -> int:
        ring = self._ring.holding(n_bytes)
        if ring is not self._ring:
            buffer = self._memory.buffer(ring.size)
            self._outgrown.append(self._scratch)  # recorded commands may still name it
            self._scratch, self._ring = buffer, ring
        offset = ring.take(n_bytes)
        address = self._scratch.address + offset
        self.taken.append((address, address + rounded(n_bytes)))
        return address
