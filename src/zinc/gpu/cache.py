"""KV cache blocks and recurrent states in device memory.

The blocks of keys of a layer are contiguous, and so are its blocks of values. A block is therefore
one byte range of keys and one of values. Recurrent states are rows of float32, one for each slot.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zinc.backends.api import CacheLayout
from zinc.gpu.addresses import DeviceKV
from zinc.gpu.host import Host
from zinc.gpu.kv_layout import key_block_bytes, value_block_bytes
from zinc.gpu.memory import Buffer, Pool, Slice
from zinc.ops.values import KVState, RecurrentState, State


class GpuCache:
    """A `zinc.backends.api.Cache` on a GPU. Raises MemoryLimitError if the states do not fit.

    layers: blocks of each KV state by name. recurrent: address of each recurrent state by name.
    """

    def __init__(self, states: tuple[State, ...], layout: CacheLayout, host: Host) -> None:
        self.layout = layout
        self._host = host
        self.layers: dict[str, DeviceKV] = {}
        self.recurrent: dict[str, int] = {}
        # For each group the byte ranges of its blocks: buffer, start of block 0, bytes of a block.
        self._blocks: list[list[tuple[Buffer, int, int]]] = [[] for _ in layout.n_blocks]
        self._slots: list[tuple[Buffer, int, int]] = []
        pool = Pool(host)
        pool.expect(size for state in states for size in self._sizes(state))
        for state in states:
            places = [pool.take(size) for size in self._sizes(state)]
            if isinstance(state, RecurrentState):
                self._add_recurrent(state, places)
            else:
                self._add_layer(state, places)
        for buffer in pool.buffers:  # a weight of 0 times stale memory could be NaN
            host.clear(buffer)
        self.n_bytes = pool.n_bytes

    def _sizes(self, state: State) -> list[int]:
        """Return the bytes of all key blocks and of all value blocks, or of all slots."""
        if isinstance(state, RecurrentState):
            return [self.layout.state_slots * _slot_bytes(state)]
        n_blocks = self.layout.n_blocks[self._group(state)]
        return [n_blocks * size for size in self._block_bytes(state) if size]

    def _group(self, state: KVState) -> int:
        return self.layout.group_of.get(state.name, 0)

    def _block_bytes(self, state: KVState) -> tuple[int, int]:
        """Return the bytes of a block of keys and of a block of values."""
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
            self._host.copy(buffer, start + source * size, buffer, start + target * size, size)

    def copy_state(self, source: int, target: int) -> None:
        for buffer, start, size in self._slots:
            self._host.copy(buffer, start + source * size, buffer, start + target * size, size)

    def block_views(self, group: int, block: int) -> list[npt.NDArray[np.uint8]]:
        return [
            self._host.read(buffer, start + block * size, size)
            for buffer, start, size in self._blocks[group]
        ]

    def put_block(self, group: int, block: int, views: list[npt.NDArray[np.uint8]]) -> None:
        for (buffer, start, size), view in zip(self._blocks[group], views, strict=True):
            self._host.write(buffer, start + block * size, view)

    def state_views(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        return [
            self._host.read(buffer, start + slot * size, size)
            for buffer, start, size in self._slots
        ]

    def put_state(self, slot: int, views: list[npt.NDArray[np.uint8]]) -> None:
        for (buffer, start, size), view in zip(self._slots, views, strict=True):
            self._host.write(buffer, start + slot * size, view)


def _slot_bytes(state: RecurrentState) -> int:
    return 4 * max(1, state.floats)
