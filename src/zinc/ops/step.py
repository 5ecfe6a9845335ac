"""What changes from step to step: the batch, and the cache a reference reads it against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Step:
    """A ragged batch of tokens from one or more sequences.

    The tokens of a sequence are adjacent and in order of position. Prefill, decode and
    verification differ only in how many tokens each sequence brings.

    ids, positions, sequence: int32 [tokens]; output_rows: int32 [outputs], the token rows whose
    logits are wanted; seq_start: int32 [sequences + 1], first token row of each sequence;
    state_slot: int32 [sequences], where each has its recurrent state; tables: one block table
    int32 [sequences, blocks] for each group of layers (see `KVState.window`), -1 where no block
    is held.
    """

    ids: IntArray
    positions: IntArray
    sequence: IntArray
    output_rows: IntArray
    seq_start: IntArray
    state_slot: IntArray
    tables: tuple[IntArray, ...] = field(default_factory=tuple)

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def n_sequences(self) -> int:
        return len(self.seq_start) - 1
