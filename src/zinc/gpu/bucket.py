"""Buckets of step sizes: steps of a bucket run the same recorded dispatches."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from zinc.backends.plans import Launch, Plan
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.ops.step import Step
from zinc.ops.values import Dim

SMALLEST_KEYS = 256


@dataclass(frozen=True, slots=True)
class Bucket:
    """Upper bounds of a step's sizes. Grids are made for them; kernels read the actual sizes.

    `keys` bounds the cached positions of the longest sequence after the step. `is_decode` says that
    every sequence has exactly one token, `samples` that the device samples tokens,
    `penalizes` that some of these rows have penalties, and `logits` that the host reads the output.
    """

    tokens: int
    outputs: int
    sequences: int
    keys: int
    is_decode: bool = False
    samples: bool = False
    penalizes: bool = False
    logits: bool = True

    @classmethod
    def of_step(cls, plan: Plan, step: Step, logits: bool = True) -> Bucket:
        """Return the bucket of `step`."""
        return _rounded(
            (plan.max_tokens, plan.max_outputs),
            (len(step.ids), len(step.output_rows), len(step.state_slot)),
            _log2(max(step.n_keys, SMALLEST_KEYS)),
            step.is_decode,
            step.sample_params is not None,
            step.penalties is not None,
            logits,
        )

    def rounded(self, max_tokens: int, max_outputs: int) -> Bucket:
        """Return this bucket with sizes rounded up to powers of two, at most those of a plan."""
        return replace(
            self,
            tokens=min(_power_of_two(self.tokens), max_tokens),
            outputs=min(_power_of_two(self.outputs), max_outputs),
            sequences=min(_power_of_two(self.sequences), max_tokens),
            keys=_power_of_two(max(self.keys, SMALLEST_KEYS)),
        )

    def runs(self, launch: Launch) -> bool:
        """Return whether a launch runs in the steps of this bucket."""
        return launch.when is None or launch.runs(self.tokens, self.keys, self.is_decode)

    def rows(self, dim: Dim) -> int:
        """Return an upper bound on the rows of `dim` in a step of this bucket."""
        if dim is Dim.TOKENS:
            return self.tokens
        if dim is Dim.OUTPUTS:
            return self.outputs
        return self.sequences if dim is Dim.SEQUENCES else 1

    def tiles(self, n_rows: int, each: int = 1) -> int:
        """Return an upper bound on the tiles of `n_rows` rows in a step; a token has `each` rows.

        A tile has rows of one sequence only, so the last tile of a sequence may be partly empty.
        """
        total = self.tokens * each + self.sequences * (n_rows - 1)
        return min(total // n_rows, self.tokens * ceil_div(each, n_rows))


@lru_cache(maxsize=256)  # called for every step, so arguments are positional
def _rounded(
    most: tuple[int, int],
    sizes: tuple[int, int, int],
    log2_keys: int,
    is_decode: bool,
    samples: bool,
    penalizes: bool,
    logits: bool,
) -> Bucket:
    """Return the bucket of a step with `sizes` (tokens, outputs, sequences).

    most: tokens and outputs of the plan. log2_keys: see `_log2`.
    """
    exact = Bucket(*sizes, 1 << log2_keys, is_decode, samples, penalizes, logits)
    return exact.rounded(*most)


def _power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least `n`; 0 for 0."""
    return 1 << _log2(n) if n else 0


def _log2(n: int) -> int:
    """Return the logarithm of the smallest power of two that is at least `n`; 0 for 0."""
    return (n - 1).bit_length() if n else 0
