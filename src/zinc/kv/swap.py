"""A sequence's part of the cache as a copy in ordinary memory, while others need its place.

The copy has the bytes of its blocks and of its recurrent state as the backend keeps them, so what
comes back is bit for bit what left, in other blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zinc.kv.copier import Bytes, Copier


@dataclass(frozen=True, slots=True)
class Swapped:
    """The first `n_tokens` of a sequence.

    blocks: for each group and entry of its table the bytes in every layer, None where a window has
    left. state: the bytes of its recurrent states, empty without any.
    """

    n_tokens: int
    blocks: tuple[tuple[Bytes | None, ...], ...]
    n_trimmed: tuple[int, ...]
    state: Bytes

    @property
    def n_bytes(self) -> int:
        blocks = (block for table in self.blocks for block in table if block is not None)
        return self.state.nbytes + sum(block.nbytes for block in blocks)

    @property
    def n_blocks(self) -> tuple[int, ...]:
        """Blocks of each group that it needs to come back."""
        return tuple(sum(block is not None for block in table) for table in self.blocks)

    @property
    def n_table(self) -> int:
        return len(self.blocks[0])


def copy_out(
    copier: Copier,
    tables: Sequence[Sequence[int]],
    n_trimmed: Sequence[int],
    n_tokens: int,
    slot: int | None,
) -> Swapped:
    """slot: of its recurrent states, None when the model has none."""
    blocks = tuple(
        tuple(None if b < 0 else _joined(copier.block_views(group, b)) for b in table)
        for group, table in enumerate(tables)
    )
    state = _joined([] if slot is None else copier.state_views(slot))
    return Swapped(n_tokens, blocks, tuple(n_trimmed), state)


def copy_in(
    copier: Copier, swapped: Swapped, tables: Sequence[Sequence[int]], slot: int | None
) -> None:
    """The inverse of `copy_out`, into other blocks and another slot."""
    for group, (table, blocks) in enumerate(zip(tables, swapped.blocks, strict=True)):
        for number, block in zip(table, blocks, strict=True):
            if block is not None:
                copier.put_block(group, number, _filled(block, copier.block_views(group, number)))
    if slot is not None:
        copier.put_state(slot, _filled(swapped.state, copier.state_views(slot)))


def _joined(views: Sequence[Bytes]) -> Bytes:
    flat = [view.reshape(-1) for view in views]
    return np.concatenate(flat) if flat else np.empty(0, np.uint8)


def _filled(data: Bytes, views: list[Bytes]) -> list[Bytes]:
    at = 0
    for view in views:
        view[...] = data[at : at + view.nbytes].reshape(view.shape)
        at += view.nbytes
    return views
