"""The policy: how many tokens of each draft a step verifies, so that speculation is never slower.

A step that verifies k tokens of a draft yields 1 + a_1 + a_1 a_2 + ... tokens, where a_i is the
probability that token i is accepted if those before it are, and takes the time of k more rows. The
policy chooses the k with the most tokens per second, if the gain is at least `LEAST_GAIN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from zinc.core.dataclass import dataclass
from zinc.engine.speculative.draft import Draft, expected_tokens
from zinc.engine.speculative.step_times import StepTimes

# Least tokens per second of a step with a draft, relative to a step without. A smaller gain may be
# a measurement error.
LEAST_GAIN = 1.03
# After this many tokens without a draft, one token is drafted, to measure acceptance again.
PROBE_TOKENS = 64
# A sequence whose drafts cost more than they saved over this many tokens stops drafting for twice
# as many, then for four times as many.
GUARD_TOKENS = 64

_EDGES = (0.4, 0.6, 0.8, 0.95)
# Initial acceptance for each range of probabilities, measured on newly written prose. There, tokens
# of low probability are accepted less often than their probability says.
_RATES = (0.13, 0.33, 0.56, 0.85, 0.97)
_PRIOR_TOKENS = 6.0
_MEMORY_TOKENS = 200.0


class Acceptance:
    """Measured acceptance of drafted tokens by the probability that the drafter gives them."""

    def __init__(self) -> None:
        self._tried = [_PRIOR_TOKENS] * len(_RATES)
        self._accepted = [_PRIOR_TOKENS * p for p in _RATES]

    def rate(self, probability: float) -> float:
        """Return how often a token of this probability is accepted."""
        i = _bucket(probability)
        return self._accepted[i] / self._tried[i]

    def rates(self, probabilities: Sequence[float]) -> list[float]:
        """Return the rate of each of `probabilities`."""
        return [self.rate(probability) for probability in probabilities]

    def record(self, probability: float, accepted: bool) -> None:
        """Record whether a token drafted with `probability` was accepted. Old records fade."""
        i = _bucket(probability)
        if self._tried[i] > _MEMORY_TOKENS:
            self._tried[i] *= 0.5
            self._accepted[i] *= 0.5
        self._tried[i] += 1
        self._accepted[i] += accepted


def _bucket(probability: float) -> int:
    return sum(probability >= edge for edge in _EDGES)


@dataclass(slots=True)
class Record:
    """Outcome of the drafts of one sequence.

    expected: sum of the estimated acceptance of all compared tokens. accepted: number of compared
    tokens that were accepted. saved_s: seconds saved by drafts since the last check of the guard,
    which was at `guarded` tokens of the answer; negative if drafts cost time. off_until: the length
    of the answer from which on it is drafted again. last_draft: length of the answer at the last
    draft. rates: estimated acceptance of the tokens of the last draft.
    """

    expected: float = 3.0
    accepted: float = 3.0
    saved_s: float = 0.0
    guarded: int = 0
    off_until: int = 0
    pause: int = GUARD_TOKENS
    last_draft: int = 0
    rates: list[float] = field(default_factory=list)

    @property
    def factor(self) -> float:
        """Acceptance of this sequence's tokens relative to the estimate, at most 1.1."""
        return min(1.1, self.accepted / self.expected)

    def reached(self, probability: float, accepted: bool) -> None:
        """Record that a token with acceptance `probability` was compared."""
        self.expected += probability
        self.accepted += accepted
        if self.expected > 40:
            self.expected, self.accepted = self.expected / 2, self.accepted / 2

    def guard(self, n_generated: int) -> None:
        """Stop drafting for a while if drafts have cost more than they saved."""
        if n_generated - self.guarded < GUARD_TOKENS:
            return
        if self.saved_s < 0:
            self.pause *= 2
            self.off_until = n_generated + self.pause
        else:
            self.pause = GUARD_TOKENS
        self.guarded, self.saved_s = n_generated, 0.0


@dataclass(frozen=True, slots=True)
class Offer:
    """A draft that may be verified.

    rates: the acceptance of its tokens. n_generated: tokens of the answer so far.
    """

    draft: Draft
    rates: Sequence[float]
    record: Record
    n_generated: int


def lengths(
    offers: Sequence[Offer],
    n_streams: int,
    n_rows: int,
    most_rows: int,
    times: StepTimes,
) -> list[int]:
    """Return how many tokens of each draft to verify.

    n_streams: sequences that gain a token in the step anyway. n_rows: rows of the step without
    drafts. most_rows: rows of drafts that fit. The best draft is considered first; each is judged
    by what it adds to those before it.
    """
    chosen = [0] * len(offers)
    rates = [[min(0.99, rate * offer.record.factor) for rate in offer.rates] for offer in offers]
    order = sorted(range(len(offers)), key=lambda i: -expected_tokens(rates[i]))
    gained, rows, left = float(n_streams), n_rows, most_rows
    for i in order:
        offer = offers[i]
        if offer.n_generated < offer.record.off_until:
            continue
        k, tokens = _best_length(rates[i][:left], gained, rows, times)
        if not k and left and rates[i] and _is_due(offer):
            k, tokens = 1, rates[i][0]
        chosen[i] = k
        gained, rows, left = gained + tokens, rows + k, left - k
        offer.record.rates = rates[i][:k]
    return chosen


def _is_due(offer: Offer) -> bool:
    return offer.n_generated - offer.record.last_draft >= PROBE_TOKENS


def _best_length(
    rates: Sequence[float], gained: float, rows: int, times: StepTimes
) -> tuple[int, float]:
    """Return the draft length with the most tokens per second, and its expected tokens."""
    least = LEAST_GAIN * gained / times.ratio(rows)
    best, best_tokens = 0, 0.0
    tokens, product = 0.0, 1.0
    for k, rate in enumerate(rates, 1):
        product *= rate
        tokens += product
        speed = (gained + tokens) / times.ratio(rows + k)
        if speed >= least:
            least, best, best_tokens = speed, k, tokens
    return best, best_tokens
