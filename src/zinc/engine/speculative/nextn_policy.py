"""How many tokens the NextN block drafts, before it runs."""

from __future__ import annotations

from zinc.engine.speculative.policy import LEAST_GAIN
from zinc.engine.speculative.step_times import StepTimes

# A longer chain of the block's own rows loses acceptance and never paid in published measurements.
MOST_TOKENS = 4
# A chain ends with the token whose probability, with those before it, is less.
LEAST_PROBABILITY = 0.25

# Acceptance by depth before it is measured: low, since trained blocks reach 0.6 to 0.9.
_RATES = (0.7, 0.65, 0.6, 0.55)
_WEIGHT = 0.03
# The time of a draft step in model steps before it is measured.
_STEP_RATIO = 0.2
_LONGEST_MEMORY = 20  # draft steps
# Where the block does not pay, one sequence of as many uses it.
_PROBE_SEQUENCES = 16
# Such a sequence drafts one token with it after as many steps.
_PROBE_STEPS = 32


class NextNPolicy:
    """Length of the chain that a NextN block drafts, by its acceptance and its cost.

    times: of the model's steps.
    """

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._rates = list(_RATES)
        self._step_ratio = _STEP_RATIO
        self._n_measured = -1  # the first draft step is not typical
        self._n_idle = 0
        self._n_refused = 0

    def wants(self) -> bool:
        """Return whether a new sequence should use the block, which takes time for its prompt."""
        if self._best_depth(1, 1):
            return True
        self._n_refused = (self._n_refused + 1) % _PROBE_SEQUENCES
        return self._n_refused == 0

    def depth(self, n_streams: int, n_rows: int) -> int:
        """Return how many tokens to draft for each of `n_streams` sequences that use the block.

        n_rows: rows of the step without drafts. It is 0 if no token pays, and now and then 1, to
        measure again.
        """
        best = self._best_depth(n_streams, n_rows)
        self._n_idle = 0 if best else self._n_idle + 1
        return best or int(self._n_idle % _PROBE_STEPS == 0)

    def _best_depth(self, n_streams: int, n_rows: int) -> int:
        least = LEAST_GAIN * n_streams / self._times.ratio(n_rows)
        best = 0
        for k in range(1, MOST_TOKENS + 1):
            took = self._times.ratio(n_rows + k * n_streams) + k * self._step_ratio
            speed = n_streams * (1 + self.expected(k)) / took
            if speed >= least:
                least, best = speed, k
        return best

    def expected(self, depth: int) -> float:
        """Return the expected number of accepted tokens of a chain of `depth` tokens."""
        total, product = 0.0, 1.0
        for rate in self._rates[:depth]:
            product *= rate
            total += product
        return total

    def record(self, depth: int, accepted: bool) -> None:
        """Record the fate of the token after `depth` others of a chain, all of them accepted."""
        self._rates[depth] += _WEIGHT * (accepted - self._rates[depth])

    def took(self, seconds: float, n_steps: int) -> None:
        """Record that `n_steps` steps of the block took `seconds`."""
        if n_steps and self._times.unit_s:
            ratio = seconds / n_steps / self._times.unit_s
            self._n_measured = min(self._n_measured + 1, _LONGEST_MEMORY)
            if self._n_measured:
                self._step_ratio += (ratio - self._step_ratio) / self._n_measured
