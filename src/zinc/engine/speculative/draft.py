"""Drafts: tokens that a sequence may continue with, and the drafters that guess them.

A drafter guesses the next tokens of a sequence without running the model. A step then runs the
guessed tokens behind the last known one, and the sampler accepts the first of them for as long as
they equal the tokens that it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next.

    probabilities: for each token, the estimated probability that it is accepted if all tokens
    before it are.
    """

    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)

    @property
    def expected(self) -> float:
        """The expected number of accepted tokens."""
        return float(sum(accumulate(self.probabilities, mul)))


NO_DRAFT = Draft()


class Drafter(Protocol):
    """A source of drafts for one sequence."""

    def draft(self, most: int) -> Draft:
        """Return a draft of at most `most` tokens that follow the tokens accepted so far."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text of the sequence."""
