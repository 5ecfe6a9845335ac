"""A progress line on a terminal, for work that takes longer than a glance.

Nothing is drawn in the first seconds, when the stream is not a terminal, or when NO_COLOR is set
(https://no-color.org); the line is erased when the work is done, so what follows starts clean.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_REDRAW_S = 0.1
_BAR_COLUMNS = 24


def is_plain(stream: TextIO) -> bool:
    """Whether `stream` takes no escape sequences: no terminal, a dumb one, or NO_COLOR is set."""
    return (
        not stream.isatty()
        or bool(os.environ.get("NO_COLOR"))
        or os.environ.get("TERM", "") == "dumb"
    )


class ProgressBar:
    """Call it with (done, total); it draws once `delay_s` seconds have passed."""

    def __init__(
        self,
        label: str,
        *,
        stream: TextIO | None = None,
        delay_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._enabled = not is_plain(self._stream)
        self._clock = clock
        self._started = clock()
        self._next_draw = self._started + delay_s
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if not self._enabled or now < self._next_draw or total <= 0:
            return
        self._next_draw = now + _REDRAW_S
        share = min(1.0, max(0.0, done / total))
        full = round(share * _BAR_COLUMNS)
        line = f"{self._label} [{'#' * full}{'.' * (_BAR_COLUMNS - full)}] {share:4.0%}"
        elapsed = now - self._started
        if 0 < share < 1:
            line += f" {elapsed * (1 - share) / share:.0f} s left"
        columns = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{line[:columns]}")
        self._stream.flush()
        self._drawn = True

    def close(self) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
