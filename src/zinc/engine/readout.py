"""What is read from the rows of a prompt while it runs: an embedding, or how likely it was.

A sequence with a readout runs its whole prompt, whatever the prefix cache has of it. `Pooled` reads
the hidden states behind the final norm; the sequence ends with its prompt. `PromptLogprobs` reads
logits, and the sequence goes on to its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zinc.core.errors import RequestError
from zinc.engine.sampling import Sampled
from zinc.engine.sampling.chain import log_probabilities
from zinc.ops.values import FloatArray


class Readout(Protocol):
    """Takes the rows of a prompt in order. `hidden`: those behind the final norm, else logits."""

    hidden: bool

    def read(self, ids: Sequence[int], first: int, rows: FloatArray) -> None:
        """rows: [tokens, hidden] or [tokens, vocab] of the prompt `ids` from position `first` on.

        They are valid during the call only.
        """
        ...

    def reset(self) -> None:
        """Forgets everything: the prompt begins anew."""
        ...


class Pooling(StrEnum):
    """How the rows of a text become one: their mean, the first or the last; or none of them does,
    and each stays."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
    NONE = "none"

    @classmethod
    def named(cls, name: str) -> Pooling:
        """Raises RequestError when there is none of that name."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise RequestError(f"there is no pooling {name!r}", "", f"choose {known}") from None

    @classmethod
    def of_file(cls, number: object) -> Pooling:
        """What `<architecture>.pooling_type` of a model file means; the mean when it has none.

        https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: 0 none, 1 mean, 2 cls, 3 last.
        """
        return {2: cls.CLS, 3: cls.LAST}.get(number if isinstance(number, int) else 1, cls.MEAN)


class Pooled:
    """One row for a prompt, or every one. `row` is float64 [hidden], not normalised; for
    Pooling.NONE there are `rows`, float32 [tokens, hidden], in its place."""

    hidden = True

    def __init__(self, pooling: Pooling = Pooling.MEAN) -> None:
        self._pooling = pooling
        self.reset()

    def reset(self) -> None:
        self._sum: npt.NDArray[np.float64] | None = None
        self._count = 0
        self._rows: list[FloatArray] = []

    def read(self, ids: Sequence[int], first: int, rows: FloatArray) -> None:
        if self._pooling is Pooling.NONE:
            self._rows.append(rows.copy())
        elif self._pooling is Pooling.MEAN:
            part = rows.sum(axis=0, dtype=np.float64)
            self._sum = part if self._sum is None else self._sum + part
            self._count += len(rows)
        elif self._pooling is Pooling.LAST or first == 0:
            self._sum = rows[-1 if self._pooling is Pooling.LAST else 0].astype(np.float64)
            self._count = 1

    @property
    def rows(self) -> FloatArray:
        return np.concatenate(self._rows)

    @property
    def row(self) -> npt.NDArray[np.float64]:
        if self._sum is None:
            raise RuntimeError("the prompt has not run")
        return self._sum / self._count


class PromptLogprobs:
    """How likely each token of a prompt was: `tokens` has one entry for each but the first.

    top: so many of the most likely tokens in each place are reported beside.
    """

    hidden = False

    def __init__(self, top: int = 0) -> None:
        self._top = top
        self.reset()

    def reset(self) -> None:
        self.tokens: list[Sampled] = []

    def read(self, ids: Sequence[int], first: int, rows: FloatArray) -> None:
        for token, logits in zip(ids[first + 1 : first + 1 + len(rows)], rows, strict=False):
            self.tokens.append(log_probabilities(logits, token, self._top))


def embedding(
    row: npt.NDArray[np.float64], dimensions: int | None = None, norm: float | None = 2
) -> FloatArray:
    """A pooled row as an embedding, float32 [dimensions or hidden].

    It is cut to its first `dimensions`, as models trained for that allow (Kusupati et al. 2022,
    arXiv:2205.13147), and then divided by its p-norm for `norm` = p; None leaves it as it is.
    Raises RequestError when the model has fewer dimensions.
    """
    if dimensions is not None and not 1 <= dimensions <= len(row):
        raise RequestError(
            f"an embedding of {dimensions} dimensions is not possible",
            f"this model has {len(row)}",
        )
    row = row[:dimensions]
    length = 0.0 if norm is None else float(np.linalg.norm(row, norm))
    return (row / length if length > 0 else row).astype(np.float32)
