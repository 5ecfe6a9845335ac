"""Ctrl-C as a flag instead of an exception, so that a step of the engine is never interrupted."""

from __future__ import annotations

import signal
import threading
from types import FrameType


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
