"""How long a step of n rows takes, in multiples of a step of one row.

The plan gives an estimate before the first step: a step reads the weights once, whatever its rows,
reads more experts the more rows it has, and computes in proportion to its rows. The steps that run
replace the estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from zinc.backends.plans import Plan
from zinc.engine.step_cost import StepShape

# Bytes that a CPU core reads in the time of a FLOP, measured on two machines with 4-bit weights: a
# row costs a quarter of reading the weights.
BYTES_PER_FLOP = 0.07
# The same of a GPU with matrix units.
BYTES_PER_FLOP_OF_DEVICES = 0.015
# Context length at which the estimate is made. It changes little with it.
_DEPTH = 512
_WEIGHT_OF_ESTIMATE = 2
_LONGEST_MEMORY = 20  # steps, so that a change of load is followed
_UNIT_WEIGHT = 0.2


class StepTimes:
    """Times of steps by their number of rows, as ratios to the time of one row.

    estimate: the ratio of a number of rows before it was measured. `unit_s` is the time of a step
    of one row in seconds at the present context and load, None before the first step.
    """

    def __init__(self, estimate: Callable[[int], float]) -> None:
        self.unit_s: float | None = None
        self._estimate = estimate
        self._measured: dict[int, tuple[float, int]] = {1: (1.0, 1)}

    def ratio(self, rows: int) -> float:
        """Return the time of a step of `rows` rows in steps of one row.

        Without a measurement it is the estimate, corrected as the nearest measured number of rows
        says.
        """
        if rows not in self._measured:
            nearest = min(self._measured, key=lambda known: (abs(known - rows), known))
            return self._estimate(rows) * self._measured[nearest][0] / self._estimate(nearest)
        return self._measured[rows][0]

    def record(self, rows: int, seconds: float) -> None:
        """Record that a step of `rows` rows took `seconds`."""
        ratio = self.ratio(rows)
        if self.unit_s is None:
            self.unit_s = seconds / ratio
        if rows > 1:
            _, n = self._measured.get(rows, (ratio, _WEIGHT_OF_ESTIMATE))
            n = min(n + 1, _LONGEST_MEMORY)
            self._measured[rows] = ratio + (seconds / self.unit_s - ratio) / n, n
        self.unit_s += _UNIT_WEIGHT * (seconds / self.ratio(rows) - self.unit_s)


def estimate_of(plan: Plan, bytes_per_flop: float = BYTES_PER_FLOP) -> Callable[[int], float]:
    """Return the estimated time of a step by its rows, in steps of one row.

    The step is bound by memory or by arithmetic, whichever takes longer.
    """
    cost = cost_of(plan, bytes_per_flop)
    return lambda rows: cost(rows) / cost(1)


def cost_of(plan: Plan, bytes_per_flop: float = BYTES_PER_FLOP) -> Callable[[int], float]:
    """Return the estimated time of a step by its rows, in bytes that could be read meanwhile."""

    @cache
    def cost(rows: int) -> float:
        shape = StepShape(rows, rows, _DEPTH)
        n_bytes = sum(shape.bytes(launch) for launch in plan.launches)
        flops = sum(shape.flops(launch) for launch in plan.launches)
        return max(float(n_bytes), flops * bytes_per_flop)

    return cost
