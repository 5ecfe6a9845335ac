"""How long a step of n rows takes, in multiples of a step of one row.

The plan gives an estimate before the first step: a step reads the weights once, whatever its rows,
reads more experts the more rows it has, and computes in proportion to its rows. The steps that run
replace the estimate. On a busy machine other processes delay many of them, often by many times the
usual time. Delays only add time, so the table holds a low quantile: the time that the fastest third
of the last steps did not exceed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache

from zinc.backends.plans import Plan
from zinc.engine.step_cost import StepShape

# Bytes that a CPU core reads in the time of a FLOP, measured on two machines. With 4-bit weights,
# the arithmetic of a row takes a quarter of the time of reading the weights.
BYTES_PER_FLOP = 0.07
# The same for a GPU with matrix units.
BYTES_PER_FLOP_OF_DEVICES = 0.015
# Context length of the estimate, which depends on it little.
_DEPTH = 512
# Lengths of the history of a ratio and of the load. The load's history is shorter, so that a change
# of the load is noticed before it distorts the ratios.
_LONGEST_MEMORY = 25
_MEMORY_OF_LOAD = 9
_UNIT_WEIGHT = 0.2
# A time over this multiple of the typical one includes a delay by other processes.
_DELAYED = 1.5


class TypicalTime:
    """The first tercile of the times of the last steps of one kind, in any unit.

    estimate: counts as the first time. memory: the number of times that are remembered.
    """

    def __init__(self, estimate: float, memory: int = _LONGEST_MEMORY) -> None:
        self.value = estimate
        self._last = deque([estimate], memory)

    def record(self, time: float) -> float:
        """Record `time`; return it, or the typical time if it includes a delay."""
        self._last.append(time)
        self.value = sorted(self._last)[(len(self._last) - 1) // 3]
        return self.value if time > _DELAYED * self.value else time


class StepTimes:
    """Times of steps by their number of rows, as ratios to the time of one row.

    estimate: the ratio of a number of rows before it was measured. `unit_s` is the time of a step
    of one row in seconds at the present context and load, None before the first step.
    """

    def __init__(self, estimate: Callable[[int], float]) -> None:
        self.unit_s: float | None = None
        self._estimate = estimate
        self._measured = {1: TypicalTime(1.0)}
        self._load = TypicalTime(1.0, _MEMORY_OF_LOAD)  # times relative to the expected ones

    def ratio(self, rows: int) -> float:
        """Return the time of a step of `rows` rows in steps of one row.

        Without a measurement it is the estimate, corrected by the nearest measured number of rows.
        A step never takes longer than one of more rows.
        """
        if rows in self._measured:
            found = self._measured[rows].value
        else:
            nearest = min(self._measured, key=lambda known: (abs(known - rows), known))
            found = self._estimate(rows) * self._measured[nearest].value / self._estimate(nearest)
        return min([found, *(x.value for known, x in self._measured.items() if known > rows)])

    def record(self, rows: int, seconds: float) -> float:
        """Record the time of a step of `rows` rows; return it, corrected for a delay."""
        unit_s = self.unit_s or seconds / self.ratio(rows)
        if rows > 1:
            known = self._measured.setdefault(rows, TypicalTime(self.ratio(rows)))
            known.record(max(1.0, seconds / unit_s))
        expected_s = unit_s * self.ratio(rows)
        load = self._load.record(seconds / expected_s)
        # A step of one row that is much faster than expected shows that earlier ones were delayed.
        weight = 1.0 if rows == 1 and load * _DELAYED < 1 else _UNIT_WEIGHT
        self.unit_s = unit_s * (1 + weight * (load - 1))
        return load * expected_s


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
