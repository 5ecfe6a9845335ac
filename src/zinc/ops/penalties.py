"""Penalties on tokens of a recent window: repetition, presence and frequency.

Repetition divides a positive logit by the penalty and multiplies a negative one (Keskar et al.
2019, arXiv:1909.05858, with the sign fixed). Frequency subtracts once per occurrence, presence once
per token (OpenAI's definition). Host and devices round each operation to float32, in this order, so
their results are equal.

A device gets the distinct tokens of each output row's window, with their counts:

    rows    PENALTY_PARAMS [outputs]: the penalties, and `n_counts` pairs from `first` on
    counts  uint32 [pairs, 2]: a token and its count, for all rows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.ops.values import FloatArray

CountArray: TypeAlias = npt.NDArray[np.uint32]

MOST_PENALIZED = 1024  # distinct tokens in the window of a row that a device samples

PENALTY_PARAMS = np.dtype(
    [
        ("repeat", "<f4"),
        ("presence", "<f4"),
        ("frequency", "<f4"),
        ("counts_input", "<u4"),
        ("first", "<u4"),
        ("n_counts", "<u4"),
    ]
)
_NO_COUNTS = np.empty((0, 2), np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class RowPenalties:
    """Penalties of an output row. repeat 1, presence 0 and frequency 0 are neutral.

    counts: uint32 [n, 2], the distinct tokens of the window, each with its count, which may be 0.
    counts_input: whether the row's input token, which the host may not know yet, counts once more.
    """

    repeat: float
    presence: float
    frequency: float
    counts: CountArray
    counts_input: bool = False


_NONE = RowPenalties(1.0, 0.0, 0.0, _NO_COUNTS)


@dataclass(frozen=True, slots=True, eq=False)
class StepPenalties:
    """Penalties of the output rows of a step: `rows` and `counts` as the module describes them."""

    rows: npt.NDArray[np.void]
    counts: CountArray

    @classmethod
    def of(cls, rows: Sequence[RowPenalties | None]) -> StepPenalties | None:
        """Return the penalties of these rows; None if no row has any."""
        if not any(rows):
            return None
        given = [row or _NONE for row in rows]
        records, first = [], 0
        for x in given:
            n = len(x.counts)
            records.append((x.repeat, x.presence, x.frequency, x.counts_input, first, n))
            first += n
        counts = np.concatenate([x.counts for x in given])
        return cls(np.array(records, PENALTY_PARAMS), counts)

    def part(self, chosen: npt.NDArray[np.bool_]) -> StepPenalties:
        """Return the penalties of the chosen rows, bool [outputs]."""
        return StepPenalties(self.rows[chosen], self.counts)

    def apply(self, row: int, logits: FloatArray, input_token: int) -> None:
        """Rewrite `logits` [vocab] of output row `row`, whose input token is `input_token`."""
        params = self.rows[row]
        first, n = int(params["first"]), int(params["n_counts"])
        window: dict[int, int] = dict(self.counts[first : first + n].tolist())
        if params["counts_input"]:
            window[input_token] = window.get(input_token, 0) + 1
        tokens = np.array([token for token, count in window.items() if count], np.int64)
        counts = np.array([count for count in window.values() if count], np.int64)
        logits[tokens] = penalized(
            logits[tokens], counts, params["repeat"], params["presence"], params["frequency"]
        )


def penalized(
    logits: FloatArray,
    counts: npt.NDArray[Any],
    repeat: np.float32,
    presence: np.float32,
    frequency: np.float32,
) -> FloatArray:
    """Return the logits, float32 [n], of tokens that occur `counts` times, [n]."""
    scaled = np.where(logits <= 0, logits * repeat, logits / repeat)
    found: FloatArray = scaled - (counts.astype(np.float32) * frequency + presence)
    return found
