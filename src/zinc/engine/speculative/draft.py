"""Drafts: tokens that a sequence may continue with.

A drafter guesses the next tokens of a sequence without running the model. A step then runs the
drafted tokens behind the last known one, and accepts them up to the first that differs from the
token that the sampler draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import accumulate
from operator import mul

from zinc.core.dataclass import dataclass


def expected_tokens(rates: Sequence[float]) -> float:
    """Return the expected number of accepted tokens of a draft.

    rates: for each token, the probability that it is accepted if those before it are.
    """
    return float(sum(accumulate(rates, mul)))


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
        return expected_tokens(self.probabilities)

    def head(self, n_tokens: int) -> Draft:
        """Return the first `n_tokens` tokens."""
        return Draft(self.tokens[:n_tokens], self.probabilities[:n_tokens])


NO_DRAFT = Draft()
