"""A progress line on a terminal, for work that takes more than two seconds.

Nothing is drawn when the stream is plain (`terminal.is_plain`). The line is erased when the work is
done, so the next output starts on an empty line.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from zinc.core.terminal import is_plain, write_control

ERASE_LINE = "\r\x1b[K"
_REDRAW_S = 0.1
_BAR_COLUMNS = 24


class ProgressBar:
    """A progress bar named `label`, called with (done, total); drawn after `delay_s` seconds."""

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
        write_control(self._stream, ERASE_LINE)
        self._stream.write(line[:columns])
        self._stream.flush()
        self._drawn = True

    def close(self) -> None:
        if self._drawn:
            write_control(self._stream, ERASE_LINE)
            self._stream.flush()
            self._drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
