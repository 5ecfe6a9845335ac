"""Measurements of graphs on a device whose clocks are steady.

GPUs lower their clocks when they are idle. Work through Vulkan raises those of an H200 from 345 MHz
in steps of up to 0.35 seconds, for more than a second. They stay high in a pause of one second, and
are low again after two.
"""

from __future__ import annotations

from time import perf_counter

from zinc.gpu.graph import DispatchGraph
from zinc.gpu.host import Host

IDLE_S = 1.0  # longest pause after which clocks are still steady
STEADY_S = 0.6  # clocks are steady once no run has been faster for this time
MAX_WARM_UP_S = 5.0
FASTER = 0.97  # a run is faster if it takes less than this share of the fastest one


class SteadyClocks:
    """A timer of graphs on `host`, which keeps an idle device busy first, until its clocks rise."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._busy_until = float("-inf")

    def seconds(self, graph: DispatchGraph, repeats: int) -> float:
        """Return the device's seconds of the fastest of `repeats` runs of the graph."""
        if perf_counter() - self._busy_until > IDLE_S:
            self._warm_up(graph)
        seconds = self._host.seconds(graph, repeats)
        self._busy_until = perf_counter()
        return seconds

    def _warm_up(self, graph: DispatchGraph) -> None:
        start = since = perf_counter()
        best = float("inf")
        while (now := perf_counter()) - since < STEADY_S and now - start < MAX_WARM_UP_S:
            seconds = self._host.seconds(graph, 1)
            if seconds < FASTER * best:
                best, since = seconds, now
