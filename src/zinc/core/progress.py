"""Progress bar on a terminal, for long tasks.

Nothing is drawn if the stream is plain (`terminal.is_plain`). The line is erased at the end, so the
next output starts on an empty line.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import TextIO

from zinc.core.terminal import is_plain, write_control

ERASE_LINE = "\r\x1b[K"
_REDRAW_S = 0.1
_BAR_COLUMNS = 24


class ProgressBar:
    """A progress bar, called with (done, total); it appears after `delay_s` seconds."""

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
        if not self._enabled or now < self._next_draw:
            return
        self._next_draw = now + _REDRAW_S
        write_control(self._stream, ERASE_LINE)
        self._stream.write(self._line(done, total, now)[: shutil.get_terminal_size().columns - 1])
        self._stream.flush()
        self._drawn = True

    def _line(self, done: int, total: int, now: float) -> str:
        """Return the text of the bar, or only the label if `total` is 0 (unknown)."""
        if total <= 0:
            return f"{self._label} ..."
        share = min(1.0, max(0.0, done / total))
        full = round(share * _BAR_COLUMNS)
        line = f"{self._label} [{'#' * full}{'.' * (_BAR_COLUMNS - full)}] {share:4.0%}"
        elapsed = now - self._started
        if 0 < share < 1:
            line += f" {elapsed * (1 - share) / share:.0f} s left"
        return line

    def close(self) -> None:
        """Erase the bar."""
        if self._drawn:
            write_control(self._stream, ERASE_LINE)
            self._stream.flush()
            self._drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stepper(progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    """Return a function that reports one more step of `total` to `progress` at each call.

    Step 0 is reported at once, so that a bar appears while the first step runs.
    """
    done = count()

    def step() -> None:
        if progress is not None:
            progress(next(done), total)

    step()
    return step
