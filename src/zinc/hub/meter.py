"""The rate of a transfer, averaged over the last seconds."""

from __future__ import annotations

import time
from collections import deque

_WINDOW_S = 5.0


class Meter:
    """Speed meter of a transfer of `total` bytes that begins at `done` bytes."""

    def __init__(self, done: int, total: int) -> None:
        self._total = total
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), done)])

    def update(self, done: int) -> tuple[float, float | None]:
        """Return bytes per second, and the seconds left; None while the rate is 0."""
        now = time.monotonic()
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        since, before = self._samples[0]
        rate = max(0, done - before) / max(now - since, 1e-3)
        return rate, (self._total - done) / rate if rate > 0 else None
