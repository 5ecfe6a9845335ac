"""Handlers of stop signals for the time of a block.

`Interrupt` makes Ctrl-C a flag, so that a step of the engine is never interrupted. `StopSignals` is
for a server that starts: SIGTERM ends it as Ctrl-C does.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """A context in which the first Ctrl-C makes `requested()` true; a second one raises."""

    def __init__(self) -> None:
        self._requested = False
        self._previous: signal.Handlers | None = None

    def requested(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        return self._requested

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            self._previous = signal.signal(signal.SIGINT, self._note)  # type: ignore[assignment]
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)


class StopSignals:
    """A context in which Ctrl-C and SIGTERM raise KeyboardInterrupt, and `requested` becomes true.

    Code that the exception passes through, such as an import, may replace or swallow it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
