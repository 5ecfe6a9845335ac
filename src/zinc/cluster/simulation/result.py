"""The result of a simulation: latencies, hit rate, speed and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from zinc.core.dataclass import dataclass

if TYPE_CHECKING:
    from zinc.cluster.simulation.replica import Job

_PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class Result:
    """Figures of the requests that have ended. busy_s: time in which replicas ran, in all."""

    replicas: int
    router: str
    busy_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    first_tokens_s: list[float] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    begins_s: float = math.inf
    ends_s: float = 0.0

    def add(self, job: Job) -> None:
        """Count a job whose answer has ended."""
        self.prompt_tokens += job.request.prompt_tokens
        self.cached_tokens += job.n_cached or 0
        self.answer_tokens += job.n_generated
        self.first_tokens_s.append(job.first_s - job.arrived_s)
        self.gaps += job.gaps
        self.begins_s = min(self.begins_s, job.arrived_s)
        self.ends_s = max(self.ends_s, job.last_s)

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that came from prefix caches."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    def summary(self, price: float | None = None) -> dict[str, Any]:
        """Return the figures of the run. price: of a replica for an hour."""
        seconds = max(1e-9, self.ends_s - self.begins_s)
        hours = self.replicas * seconds / 3600
        millions = max(1, self.answer_tokens) / 1e6
        return {
            "replicas": self.replicas,
            "router": self.router,
            "requests": len(self.first_tokens_s),
            "seconds": seconds,
            "ttft_ms": _percentiles((s, 1) for s in self.first_tokens_s),
            "inter_token_ms": _percentiles(self.gaps),
            "hit_rate": self.hit_rate,
            "requests_per_s": len(self.first_tokens_s) / seconds,
            "answer_tokens_per_s": self.answer_tokens / seconds,
            "busy": self.busy_s / (self.replicas * seconds),
            "replica_hours_per_million_tokens": hours / millions,
            "cost_per_million_tokens": None if price is None else price * hours / millions,
        }


def _percentiles(values: Iterable[tuple[float, int]]) -> dict[str, float | None]:
    """Return percentiles in milliseconds of values in seconds, each with how often it occurred."""
    found = sorted(values)
    return {f"p{p}": _percentile(found, p) for p in _PERCENTILES}


def _percentile(found: Sequence[tuple[float, int]], percent: int) -> float | None:
    left = sum(count for _, count in found) * percent / 100
    for value, count in found:
        left -= count
        if left <= 0:
            return 1e3 * value
    return None
