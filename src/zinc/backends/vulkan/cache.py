"""Keys, values and recurrent states in device memory.

A layer has its blocks of keys one after another, and its blocks of values behind them, so that a
block is one range of each. States are float32 rows, one a slot.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zinc.backends.api import CacheLayout
from zinc.backends.vulkan.memory import Buffer, Memory, Pool, Slice, Staging
from zinc.gpu.dispatch import DeviceKV
from zinc.gpu.kv_layout import key_block_bytes, value_block_bytes
from zinc.ops.values import KVState, RecurrentState, State


class VulkanCache:
    """Implements zinc.backends.api.Cache. Raises MemoryLimitError when the device has no room."""

    def __init__(
        self, states: tuple[State, ...], layout: CacheLayout, memory: Memory, staging: Staging
    ) -> None:
        self.layout = layout
        self._staging = staging
        self.layers: dict[str, DeviceKV] = {}
        self.recurrent: dict[str, int] = {}
        # For each group the ranges of bytes that a block has: buffer, where they start, how many.
        self._blocks: list[list[tuple[Buffer, int, int]]] = [[] for _ in layout.n_blocks]
        self._slots: list[tuple[Buffer, int, int]] = []
        pool = Pool(memory)
        pool.expect(size for state in states for size in self._sizes(state))
        for state in states:
            places = [pool.take(size) for size in self._sizes(state)]
            if isinstance(state, RecurrentState):
                self._add_recurrent(state, places)
            else:
                self._add_layer(state, places)
        for buffer in pool.buffers:  # a masked product with what old memory holds could be a NaN
            staging.clear(buffer)
        self.n_bytes = pool.n_bytes

    def _sizes(self, state: State) -> list[int]:
        """Bytes of all keys, and of all values if there are any; or of all slots."""
        if isinstance(state, RecurrentState):
            return [self.layout.state_slots * _slot_bytes(state)]
        n_blocks = self.layout.n_blocks[self._group(state)]
        return [n_blocks * size for size in self._block_bytes(state) if size]

    def _group(self, state: KVState) -> int:
        return self.layout.group_of.get(state.name, 0)

    def _block_bytes(self, state: KVState) -> tuple[int, int]:
        """Of keys and of values."""
        layout = self.layout
        return (
            key_block_bytes(state, layout.kv_dtype, layout.block_tokens),
            value_block_bytes(state, layout.kv_dtype, layout.block_tokens),
        )

    def _add_layer(self, state: KVState, places: list[Slice]) -> None:
        layout, group = self.layout, self._group(state)
        keys, values = self._block_bytes(state)
        for place, size in zip(places, (keys, values), strict=False):
            self._blocks[group].append((place.buffer, place.offset, size))
        self.layers[state.name] = DeviceKV(
            keys=places[0].address,
            values=places[-1].address,
            key_block_bytes=keys,
            value_block_bytes=values,
            block_tokens=layout.block_tokens,
            dtype=layout.kv_dtype,
            table=group,
        )

    def _add_recurrent(self, state: RecurrentState, places: list[Slice]) -> None:
        (place,) = places
        self._slots.append((place.buffer, place.offset, _slot_bytes(state)))
        self.recurrent[state.name] = place.address

    def copy_block(self, group: int, source: int, target: int) -> None:
        for buffer, start, size in self._blocks[group]:
            self._staging.copy(buffer, start + source * size, buffer, start + target * size, size)

    def copy_state(self, source: int, target: int) -> None:
        for buffer, start, size in self._slots:
            self._staging.copy(buffer, start + source * size, buffer, start + target * size, size)

    def block_views(self, group: int, block: int) -> list[npt.NDArray[np.uint8]]:
        return [
            self._staging.read(buffer, start + block * size, size)
            for buffer, start, size in self._blocks[group]
        ]

    def put_block(self, group: int, block: int, views: list[npt.NDArray[np.uint8]]) -> None:
        for (buffer, start, size), view in zip(self._blocks[group], views, strict=True):
            self._staging.write(buffer, start + block * size, view)

    def state_views(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        return [
            self._staging.read(buffer, start + slot * size, size)
            for buffer, start, size in self._slots
        ]

    def put_state(self, slot: int, views: list[npt.NDArray[np.uint8]]) -> None:
        for (buffer, start, size), view in zip(self._slots, views, strict=True):
            self._staging.write(buffer, start + slot * size, view)


def _slot_bytes(state: RecurrentState) -> int:
    return 4 * max(1, state.floats)
