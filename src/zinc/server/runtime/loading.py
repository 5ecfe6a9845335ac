"""Load a model in a daemon thread, which does not block the end of the process."""

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
    """The load was cancelled."""


class LoadThread:
    """A daemon thread that runs `load(options, progress)`. Create it in the event loop.

    If `result` is cancelled, the thread stops at its next progress report. A model that has been
    loaded completely by then is closed.
    """

    def __init__(self, load: Load, options: LoadOptions, progress: Progress) -> None:
        self._load, self._options = load, options
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[LLM] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="zinc-load", daemon=True)
        self._thread.start()

    async def result(self) -> LLM:
        """Return the loaded model. Raises the exceptions of `load`."""
        return await self._future

    def ends_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the thread to end; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            llm = self._load(self._options, self._report)
        except BaseException as error:
            # Keep no reference to the error here: its traceback refers to the partly loaded model.
            self._call_in_loop(self._fail, error)
        else:
            if self._future.cancelled() or not self._call_in_loop(self._give, llm):
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

    def _call_in_loop(self, callback: Callable[[T], None], value: T) -> bool:
        """Call `callback(value)` in the event loop; return False if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            return False
        return True
