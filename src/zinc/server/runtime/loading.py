"""Loads a model beside the event loop, in a thread that never holds up the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from zinc.engine.load.options import LoadOptions
from zinc.engine.load.weights import Progress
from zinc.llm import LLM

T = TypeVar("T")
Load: TypeAlias = Callable[[LoadOptions, Progress], LLM]


class _CancelledError(Exception):
    """Nobody waits for the model any more."""


class LoadThread:
    """Runs `load(options, progress)` in a daemon thread; create it in the event loop.

    When `result` is cancelled the thread stops at its next report of progress. A model that is
    complete by then is closed.
    """

    def __init__(self, load: Load, options: LoadOptions, progress: Progress) -> None:
        self._load, self._options = load, options
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[LLM] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="zinc-load", daemon=True)
        self._thread.start()

    async def result(self) -> LLM:
        """Wait for the model. Raises what `load` raises."""
        return await self._future

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the thread; return whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            llm = self._load(self._options, self._report)
        except BaseException as error:
            # An argument and no variable here: the error refers to what was loaded by then.
            self._tell(self._fail, error)
        else:
            if self._future.cancelled() or not self._tell(self._give, llm):
                llm.close()

    def _report(self, done: int, total: int) -> None:
        if self._future.cancelled():
            raise _CancelledError
        self._progress(done, total)

    def _give(self, llm: LLM) -> None:
        if self._future.cancelled():
            llm.close()
        else:
            self._future.set_result(llm)

    def _fail(self, error: BaseException) -> None:
        if not self._future.cancelled():
            self._future.set_exception(error)

    def _tell(self, what: Callable[[T], None], value: T) -> bool:
        """Call `what(value)` in the event loop; return False when that has been closed."""
        try:
            self._loop.call_soon_threadsafe(what, value)
        except RuntimeError:
            return False
        return True
