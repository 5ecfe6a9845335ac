"""The length of chains: how many tokens a NextN block or a draft model drafts for a step."""

from __future__ import annotations

from collections.abc import Sequence

from zinc.engine.speculative.draft import expected_tokens
from zinc.engine.speculative.policy import LEAST_GAIN
from zinc.engine.speculative.step_times import StepTimes, TypicalTime

# A chain ends after the first token whose joint probability with the tokens before it is lower.
LEAST_PROBABILITY = 0.25

_WEIGHT = 0.03
# If chains do not pay, one sequence in this many still gets them, to measure them again.
_PROBE_SEQUENCES = 16
# While chains do not pay, a sequence that gets them drafts one token once in this many steps.
_PROBE_STEPS = 32
# Least gain that `repays` assumes, so that the drafter may read a text even if chains do not pay.
_PROBE_GAIN = 0.05


class ChainPolicy:
    """Choice of the chain length of a drafter, by measured acceptance and cost.

    times: times of the model's steps. rates: initial estimate of the acceptance at each depth; its
    length limits a chain. step_ratio: initial estimate of the time of a drafter's step, as a
    multiple of a step of the model. read_ratio: the same for a token of text that the drafter
    prefills.
    """

    def __init__(
        self,
        times: StepTimes,
        rates: Sequence[float],
        step_ratio: float,
        read_ratio: float = 0.0,
    ) -> None:
        self._times = times
        self._rates = list(rates)
        self._step_ratio = TypicalTime(step_ratio)
        self._read_ratio = TypicalTime(read_ratio)
        self._n_idle = 0
        self._n_refused = _PROBE_SEQUENCES - 1

    def wants(self) -> bool:
        """Return whether a new sequence should get chains, for which its prompt is prefilled."""
        if self.pays(1, 1):
            return True
        self._n_refused = (self._n_refused + 1) % _PROBE_SEQUENCES
        return self._n_refused == 0

    def pays(self, n_streams: int, n_rows: int) -> bool:
        """Return whether a chain pays for each of `n_streams` sequences in a step of `n_rows`."""
        return self._best_depth(n_streams, n_rows)[0] > 0

    def repays(self, n_generated: int, n_unread: int) -> bool:
        """Return whether to prefill `n_unread` tokens after `n_generated` tokens of an answer.

        The answer is assumed to double in length. Prefill pays if it costs at most what chains save
        over the remaining tokens.
        """
        gain = max(_PROBE_GAIN, self._best_depth(1, 1)[1] - 1)
        return n_unread * self._read_ratio.value <= n_generated * gain

    def depth(self, n_streams: int, n_rows: int) -> int:
        """Return how many tokens to draft for each of `n_streams` sequences that get chains.

        n_rows: rows of the step without drafts. Returns 0 if no token pays, except that every
        `_PROBE_STEPS` steps it returns 1, to measure again.
        """
        best, _ = self._best_depth(n_streams, n_rows)
        probes = not best and self.is_due
        self._n_idle = 0 if best or probes else self._n_idle + 1
        return best or int(probes)

    @property
    def is_due(self) -> bool:
        """Whether the next step drafts a token even if that does not pay, to measure again."""
        return self._n_idle >= _PROBE_STEPS - 1

    def skipped(self) -> None:
        """Record a step that was queued before it could have drafts."""
        self._n_idle += 1

    def _best_depth(self, n_streams: int, n_rows: int) -> tuple[int, float]:
        """Return the fastest length of a chain, and its speed relative to a step without drafts."""
        best, best_gain = 0, LEAST_GAIN
        for k in range(1, len(self._rates) + 1):
            took = self._times.ratio(n_rows + k * n_streams) + k * self._step_ratio.value
            gain = (1 + self.expected(k)) * self._times.ratio(n_rows) / took
            if gain >= best_gain:
                best, best_gain = k, gain
        return best, best_gain if best else 1.0

    def expected(self, depth: int) -> float:
        """Return the expected number of accepted tokens of a chain of `depth` tokens."""
        return expected_tokens(self._rates[:depth])

    def record(self, depth: int, accepted: bool) -> None:
        """Record whether token number `depth` of a chain was accepted; all before it were."""
        self._rates[depth] += _WEIGHT * (accepted - self._rates[depth])

    def took(self, seconds: float, n_steps: int) -> float:
        """Record the time of `n_steps` steps of the drafter; return it, corrected for a delay."""
        return self._recorded(self._step_ratio, seconds, n_steps)

    def has_read(self, n_tokens: int, seconds: float) -> float:
        """Record the time of reading `n_tokens` tokens; return it, corrected for a delay."""
        return self._recorded(self._read_ratio, seconds, n_tokens)

    def _recorded(self, ratio: TypicalTime, seconds: float, n: int) -> float:
        """Record the time of `n` steps or tokens in `ratio`; return it, corrected for a delay."""
        unit_s = self._times.unit_s
        return ratio.record(seconds / n / unit_s) * n * unit_s if n and unit_s else seconds
