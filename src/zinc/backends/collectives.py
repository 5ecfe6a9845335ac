"""Sums over the devices of a split model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from zinc.backends.api import Program
from zinc.backends.plans import AllReduce


class Collectives(Protocol):
    """A way for the programs of a split plan to add up partial sums.

    The host can always do it. Devices with a link of their own can add up without it: for CUDA, an
    implementation calls ncclAllReduce (float32, sum) on the stream of each program, with the
    addresses of `Term.part` and `Term.total` in its arena, and returns before the sum is made.
    """

    def all_reduce(self, entry: AllReduce, rows: int) -> None:
        """Write the sum of the first `rows` rows of all parts to each total.

        Launches before it have been started, and launches after it must see the totals.
        """
        ...


class HostCollectives:
    """Sums that the host makes: it reads all parts, adds them in order and writes the totals."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._programs = tuple(programs)

    def all_reduce(self, entry: AllReduce, rows: int) -> None:
        first, *others = (
            self._programs[term.device].read(term.part, rows)
            for term in entry.terms
            if term.part is not None
        )
        for part in others:
            first += part
        for term in entry.terms:
            self._programs[term.device].write(term.total, first)
