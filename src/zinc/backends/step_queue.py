"""Steps of a split model in a thread of their own, so that the engine may queue a step ahead."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from zinc.backends.api import FinishedStep
from zinc.core.dataclass import dataclass
from zinc.ops.values import FloatArray


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """A step that may still run; implements `zinc.backends.api.StepResult`."""

    future: Future[FinishedStep]

    def tokens(self) -> FloatArray:
        return self.future.result().tokens()

    def logits(self) -> FloatArray:
        return self.future.result().logits()

    def hidden(self, rows: int) -> FloatArray | None:
        return self.future.result().hidden(rows)


class StepQueue:
    """Queue of the steps of all programs that share a cache. They run in the order of the calls."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[FinishedStep] | None = None

    def submit(self, run: Callable[[], FinishedStep]) -> QueuedStep:
        """Queue a step, whose result raises what `run` raises."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "zinc-steps")
        self._last = self._thread.submit(run)
        return QueuedStep(self._last)

    def settle(self) -> None:
        """Wait until all steps have run. Their results have their errors."""
        if self._last is not None:
            wait([self._last])
            self._last = None
