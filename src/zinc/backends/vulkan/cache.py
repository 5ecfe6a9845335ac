"""Keys, values and recurrent states in device memory.

A layer has its blocks of keys one after another, and its blocks of values behind them, so that a
block is one range of each. States are float32 rows, one a slot.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zinc.backends.api import CacheLayout
from zinc.backends.vulkan.dispatch import DeviceKV
from zinc.backends.vulkan.kv_layout import key_block_bytes, value_block_bytes
from zinc.backends.vulkan.memory import Buffer, Memory, Staging
from zinc.ops.graph import KVState, RecurrentState, State


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
        self._slots: list[tuple[Buffer, int]] = []
        self.n_bytes = 0
        for state in states:
            if isinstance(state, RecurrentState):
                self._add_recurrent(state, memory)
            else:
                self._add_layer(state, memory)

    def _add_layer(self, state: KVState, memory: Memory) -> None:
        layout = self.layout
        group = layout.group_of.get(state.name, 0)
        n_blocks = layout.n_blocks[group]
        keys = key_block_bytes(state, layout.kv_dtype, layout.block_tokens)
        values = value_block_bytes(state, layout.kv_dtype, layout.block_tokens)
        buffers = []
        for size in (keys, values):
            if size:
                buffer = self._cleared(memory, n_blocks * size)
                self._blocks[group].append((buffer, 0, size))
                buffers.append(buffer)
        self.layers[state.name] = DeviceKV(
            keys=buffers[0].address,
            values=buffers[-1].address,
            key_block_bytes=keys,
            value_block_bytes=values,
            block_tokens=layout.block_tokens,
            dtype=layout.kv_dtype,
            table=group,
        )

    def _add_recurrent(self, state: RecurrentState, memory: Memory) -> None:
        size = 4 * max(1, state.floats)
        buffer = self._cleared(memory, self.layout.state_slots * size)
        self._slots.append((buffer, size))
        self.recurrent[state.name] = buffer.address

    def _cleared(self, memory: Memory, size: int) -> Buffer:
        """Zeros: a masked product with what old memory holds could be a NaN."""
        buffer = memory.buffer(size)
        self.n_bytes += buffer.size
        self._staging.clear(buffer)
        return buffer

    def copy_block(self, group: int, source: int, target: int) -> None:
        for buffer, start, size in self._blocks[group]:
            self._staging.copy(buffer, start + source * size, buffer, start + target * size, size)

    def copy_state(self, source: int, target: int) -> None:
        for buffer, size in self._slots:
            self._staging.copy(buffer, source * size, buffer, target * size, size)

    def block_views(self, group: int, block: int) -> list[npt.NDArray[np.uint8]]:
        return [
            self._staging.read(buffer, start + block * size, size)
            for buffer, start, size in self._blocks[group]
        ]

    def put_block(self, group: int, block: int, views: list[npt.NDArray[np.uint8]]) -> None:
        for (buffer, start, size), view in zip(self._blocks[group], views, strict=True):
            self._staging.write(buffer, start + block * size, view)

    def state_views(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        return [self._staging.read(buffer, slot * size, size) for buffer, size in self._slots]

    def put_state(self, slot: int, views: list[npt.NDArray[np.uint8]]) -> None:
        for (buffer, size), view in zip(self._slots, views, strict=True):
            self._staging.write(buffer, slot * size, view)
