"""Readouts: consumers of the rows that a prompt yields, for embeddings, log-probabilities, scores.

A sequence with a readout runs its whole prompt, even if the prefix cache holds a part of it.
`Pooled` reads hidden states, `TextLogits` and `TextLikelihood` read logits; these sequences end
with their prompt. `PromptLogprobs` reads logits, and the answer follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zinc.core.errors import RequestError
from zinc.engine.sampling import Sampled, SamplingParams
from zinc.engine.sampling.logprobs import log_probabilities
from zinc.ops.values import FloatArray

# Settings of a prompt without an answer. The list of samplers is empty, so that none are built.
NO_ANSWER = SamplingParams(max_tokens=0, temperature=0, samplers=(), seed=0)


class ReadoutKind(StrEnum):
    """The rows that a readout takes, and whether an answer follows the prompt."""

    HIDDEN = "hidden"  # hidden states after the final norm; no answer
    LOGITS = "logits"  # logits of a text, a row for every token of a step; no answer
    PROMPT_LOGITS = "prompt logits"  # logits of a prompt, whose answer follows


class Readout(Protocol):
    """Consumer of the rows of a prompt, which it reads in order."""

    kind: ReadoutKind

    def read(self, ids: Sequence[int], first: int, rows: FloatArray) -> None:
        """Take `rows`, which belong to the prompt `ids` starting at position `first`.

        rows: float32 [tokens, hidden] or [tokens, vocab], valid during the call only.
        """
        ...

    def reset(self) -> None:
        """Discard all rows, because the prompt starts again."""
        ...


class Pooling(StrEnum):
    """Pooling of the rows of a text: their mean, the first or the last; NONE keeps them all."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
    NONE = "none"

    @classmethod
    def named(cls, name: str) -> Pooling:
        """Return the pooling called `name`. Raises RequestError if there is none."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise RequestError(f"there is no pooling {name!r}", "", f"choose {known}") from None

    @classmethod
    def of_file(cls, number: object) -> Pooling:
        """Return the pooling for `number`, the file's `<arch>.pooling_type`; by default the mean.

        https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: 0 none, 1 mean, 2 cls, 3 last.
        """
        return {2: cls.CLS, 3: cls.LAST}.get(number if isinstance(number, int) else 1, cls.MEAN)


class Pooled:
    """Hidden states of a prompt, pooled into one row.

    `row` is float64 [hidden], not normalised. Pooling.NONE keeps `rows`, float32 [tokens, hidden],
    instead. project: makes the embedding of a row [hidden] or of rows.
    """

    kind = ReadoutKind.HIDDEN

    def __init__(
        self,
        pooling: Pooling = Pooling.MEAN,
        project: Callable[[FloatArray], FloatArray] | None = None,
    ) -> None:
        self._pooling, self._project = pooling, project
        self.reset()

    def reset(self) -> None:
        self._sum: npt.NDArray[np.float64] | None = None
        self._count = 0
        self._rows: list[FloatArray] = []

    def read(self, ids: Sequence[int], first: int, rows: FloatArray) -> None:
        if self._pooling is Pooling.NONE:
            self._rows.append(rows.copy())
        elif self._pooling is Pooling.MEAN:
            part = np.add.reduce(rows, axis=0, dtype=np.float64)
            self._sum = part if self._sum is None else self._sum + part
            self._count += len(rows)
        elif self._pooling is Pooling.LAST or first == 0:
            self._sum = rows[-1 if self._pooling is Pooling.LAST else 0].astype(np.float64)
            self._count = 1

    @property
    def rows(self) -> FloatArray:
        rows = np.concatenate(self._rows)
        return rows if self._project is None else self._project(rows)

    @property
    def row(self) -> npt.NDArray[np.float64]:
        row = self.total / self._count
        return row if self._project is None else self._project(row.astype(np.float32)).astype(float)

    @property
    def total(self) -> npt.NDArray[np.float64]:
        """The sum of the rows that are pooled."""
        if self._sum is None:
            raise RuntimeError("the prompt has not run")
        return self._sum

    @staticmethod
    def rows_of(pools: Sequence[Pooled]) -> npt.NDArray[np.float64]:
        """Return `row` of each of `pools`, float64 [texts, hidden], in few calls of numpy."""
        if any(pool._project is not None for pool in pools):
            return np.array([pool.row for pool in pools])
        rows = np.array([pool.total for pool in pools])
        rows /= np.array([[pool._count] for pool in pools])
        return rows


class PromptLogprobs:
    """Log-probabilities of a prompt: `tokens` has one entry for each token but the first.

    top: number of most likely alternatives to report for each position.
    """

    kind = ReadoutKind.PROMPT_LOGITS

    def __init__(self, top: int = 0) -> None:
        self._top = top
        self.reset()

    def reset(self) -> None:
        self.tokens: list[Sampled] = []

    def read(self, ids: Sequence[int], first: int, rows: FloatArray) -> None:
        for token, logits in zip(ids[first + 1 : first + 1 + len(rows)], rows, strict=False):
            self.tokens.append(log_probabilities(logits, token, self._top))


class TextLogits:
    """Logits of a text: `logits` is float32 [tokens, vocab] when the text has run."""

    kind = ReadoutKind.LOGITS

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._parts: list[FloatArray] = []

    def read(self, ids: Sequence[int], first: int, rows: FloatArray) -> None:
        self._parts.append(rows.copy())

    @property
    def logits(self) -> FloatArray:
        return np.concatenate(self._parts)


class TextLikelihood:
    """Negative log-likelihood of a text: `total` in nats over `count` scored tokens.

    The token at position i is scored by the logits at i - 1; scoring starts with the logits at
    position `first_scored`.
    """

    kind = ReadoutKind.LOGITS

    def __init__(self, first_scored: int) -> None:
        self._first_scored = first_scored
        self.reset()

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def read(self, ids: Sequence[int], first: int, rows: FloatArray) -> None:
        for at in range(max(first, self._first_scored), min(first + len(rows), len(ids) - 1)):
            x = rows[at - first].astype(np.float64)
            top = x.max()
            self.total += top + np.log(np.exp(x - top).sum()) - x[ids[at + 1]]
            self.count += 1


def embeddings(
    pools: Sequence[Pooled], dimensions: int | None = None, norm: float | None = 2
) -> FloatArray:
    """Return the pooled rows of texts as embeddings, float32 [texts, dimensions or hidden].

    Rows are cut to their first `dimensions`, which models with Matryoshka training allow (Kusupati
    et al. 2022, arXiv:2205.13147), and then divided by their p-norm for `norm` = p, unless that is
    None. Raises RequestError if the model has fewer dimensions.
    """
    rows = Pooled.rows_of(pools)
    if dimensions is not None and not 1 <= dimensions <= rows.shape[1]:
        raise RequestError(
            f"an embedding of {dimensions} dimensions is not possible",
            f"this model has {rows.shape[1]}",
            f"choose 1 to {rows.shape[1]} dimensions",
        )
    rows = rows[:, :dimensions]
    if norm is not None:
        lengths = np.linalg.norm(rows, norm, axis=1, keepdims=True)
        rows /= np.where(lengths > 0, lengths, 1)
    return rows.astype(np.float32)
