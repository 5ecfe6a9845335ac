"""Copies of preempted sequences' cache data in host memory.

A copy holds the bytes of blocks and recurrent states in the backend's own format. Swapping in
restores the same bits, in other blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.kv.copier import Bytes, Copier


@dataclass(frozen=True, slots=True)
class Swapped:
    """Cache data of the first `n_tokens` of a sequence.

    blocks: for each group, the bytes of each block in the block table; None for blocks that a
    sliding window has passed. n_trimmed: for each group, the number of blocks that its window has
    passed. state: the bytes of the recurrent states, empty if the model has none.
    """

    n_tokens: int
    blocks: tuple[tuple[Bytes | None, ...], ...]
    n_trimmed: tuple[int, ...]
    state: Bytes

    @property
    def n_bytes(self) -> int:
        """Size of the copy."""
        blocks = (block for table in self.blocks for block in table if block is not None)
        return self.state.nbytes + sum(block.nbytes for block in blocks)

    @property
    def n_blocks(self) -> tuple[int, ...]:
        """Number of blocks of each group that swapping in needs."""
        return tuple(sum(block is not None for block in table) for table in self.blocks)

    @property
    def n_table(self) -> int:
        """Number of entries of each block table."""
        return len(self.blocks[0])


def copy_out(
    copier: Copier,
    tables: Sequence[Sequence[int]],
    n_trimmed: Sequence[int],
    n_tokens: int,
    slot: int | None,
) -> Swapped:
    """Copy the data of a sequence into host memory.

    tables: its block table for each group. slot: slot of its recurrent state, None if the model has
    none.
    """
    blocks = tuple(
        tuple(None if b < 0 else _joined(copier.block_views(group, b)) for b in table)
        for group, table in enumerate(tables)
    )
    state = _joined([] if slot is None else copier.state_views(slot))
    return Swapped(n_tokens, blocks, tuple(n_trimmed), state)


def copy_in(
    copier: Copier, swapped: Swapped, tables: Sequence[Sequence[int]], slot: int | None
) -> None:
    """Copy swapped data into the blocks of `tables` and into `slot`, the inverse of `copy_out`."""
    for group, (table, blocks) in enumerate(zip(tables, swapped.blocks, strict=True)):
        for number, block in zip(table, blocks, strict=True):
            if block is not None:
                copier.put_block(group, number, _filled(block, copier.block_views(group, number)))
    if slot is not None:
        copier.put_state(slot, _filled(swapped.state, copier.state_views(slot)))


def _joined(views: Sequence[Bytes]) -> Bytes:
    """Return the bytes of all views as one array."""
    flat = [view.reshape(-1) for view in views]
    return np.concatenate(flat) if flat else np.empty(0, np.uint8)


def _filled(data: Bytes, views: list[Bytes]) -> list[Bytes]:
    """Copy `data` into the views, one after another, and return them."""
    at = 0
    for view in views:
        view[...] = data[at : at + view.nbytes].reshape(view.shape)
        at += view.nbytes
    return views
