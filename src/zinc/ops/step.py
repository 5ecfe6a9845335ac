"""What changes from step to step: the batch, and the cache a reference reads it against."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zinc.ops.values import Dim

IntArray: TypeAlias = npt.NDArray[np.int32]

# How the token of a row is drawn (zinc.ops.sampling): one of the `k` likeliest, 1 for the likeliest
# itself and 0 for a row that is not drawn; `point` is the random number, from [0, 1).
DRAW = np.dtype(
    [
        ("k", "<i4"),
        ("min_keep", "<i4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("temperature", "<f4"),
        ("point", "<f4"),
    ]
)
Draws: TypeAlias = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Step:
    """A ragged batch of tokens from one or more sequences.

    The tokens of a sequence are adjacent and in order of position. Prefill, decode and
    verification differ only in how many tokens each sequence brings.

    ids, positions, sequence: int32 [tokens], where the id -1 - r is the token that the last draw
    gave output row r (see `DrawingProgram`); output_rows: int32 [outputs], the token rows whose
    logits are wanted; seq_start: int32 [sequences + 1], first token row of each sequence;
    state_slot: int32 [sequences], where each has its recurrent state; tables: one block table
    int32 [sequences, blocks] for each group of layers (see `KVState.window`), -1 where no block
    is held; draws: DRAW [outputs], when tokens are to be drawn.
    """

    ids: IntArray
    positions: IntArray
    sequence: IntArray
    output_rows: IntArray
    seq_start: IntArray
    state_slot: IntArray
    tables: tuple[IntArray, ...] = field(default_factory=tuple)
    draws: Draws | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def n_sequences(self) -> int:
        return len(self.seq_start) - 1

    def rows(self, dim: Dim) -> int:
        """Rows that a value of `dim` has in this step."""
        match dim:
            case Dim.TOKENS:
                return self.n_tokens
            case Dim.OUTPUTS:
                return len(self.output_rows)
            case Dim.SEQUENCES:
                return self.n_sequences
            case _:
                return 1

    def with_drawn(self, drawn: IntArray) -> Step:
        """The step with ids for those that stand for tokens of the last draw, by output row."""
        if (self.ids >= 0).all():
            return self
        ids = self.ids.copy()
        ids[ids < 0] = drawn[~ids[ids < 0]]
        return replace(self, ids=ids)
