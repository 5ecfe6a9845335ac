"""The thread that owns an engine, so that any number of threads can use one model.

An engine is not thread-safe. An `EngineWorker` runs every submission, step and cancellation in one
thread of its own, and other threads wait for the results, so requests of several threads share
steps:

    thread 1 ── start(task) ──┐
    thread 2 ── start(task) ──┼─→ queue of calls ─→ worker thread: call, step, call, step, ...
    thread 3 ── call(work) ───┘                         │
    task.wait() ←───────────────── task.end() ──────────┘

The tasks of `LLM` are one call of a method each; the server has one task for all of its requests.

Two more problems disappear with that thread. Python raises KeyboardInterrupt in the main thread
only, so Ctrl-C never interrupts a step halfway. And an answer that is dropped during garbage
collection only sends a message. It takes no lock, so it cannot wait for one that the same thread
holds.

The worker steps only while a task needs a step, so an engine without callers does nothing.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

from zinc.core.errors import RequestError
from zinc.engine.engine import Engine
from zinc.engine.sequence import Sequence

T = TypeVar("T")
_Call: TypeAlias = Callable[[], None]


def closed_error() -> RequestError:
    """Return the error of every use of a model after `close`."""
    return RequestError(
        "the model is closed",
        "close() was called, or its `with` block has ended",
        "create a new LLM",
    )


class Task:
    """One caller's sequences, and the caller's way to wait for them.

    `submit` fills `sequences`. It runs in the engine's thread, as do `wants_step`, `collect`,
    `fail` and `end`.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()

    @property
    def wants_step(self) -> bool:
        """Return whether the engine should run a step for this task now."""
        return True

    def submit(self, engine: Engine) -> None:
        """Submit the sequences to `engine`. Raises RequestError."""

    def collect(self, engine: Engine) -> bool:
        """Take what the last step gained; return True when the task needs no more steps.

        Raises the error of a sequence, which ends the task.
        """
        for s in self.sequences:
            if s.error is not None:
                raise s.error
        return all(s.finish_reason is not None for s in self.sequences)

    def fail(self, error: BaseException) -> bool:
        """Take an error that belongs to no sequence; return whether it ends the task."""
        return True

    def end(self, error: BaseException | None) -> None:
        """Wake up the caller; `error` is raised there."""
        self._error = error
        self._ended.set()

    def wait_for_end(self) -> None:
        """Wait until the task has ended, also with an error."""
        self._ended.wait()

    def wait(self) -> None:
        """Wait until the task has ended. Raises its error."""
        self.wait_for_end()
        if self._error is not None:
            raise self._error


class EngineWorker:
    """An engine in a thread of its own, which starts with the first call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: list[Task] = []
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _thread and _closed
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()
        weakref.finalize(self, self._calls.put, None)

    # -- for any thread -------------------------------------------------------------------------

    def call(self, work: Callable[[Engine], T]) -> T:
        """Return the result of `work`, run between two steps. Raises what `work` raises.

        Raises RequestError when the worker is closed.
        """
        return self._ask(work).result()

    def _ask(self, work: Callable[[Engine], T]) -> Future[T]:
        """Queue `work` to run between two steps. Raises RequestError when the worker is closed."""
        if threading.current_thread() is self._thread:
            raise RequestError(
                "the model cannot be used from within a step of its own",
                "the step would wait for itself",
                "call it from the thread that started the request",
            )
        if os.getpid() != self._process:
            raise RequestError(
                "the model belongs to the process that loaded it",
                "this process was forked from that one, without its threads",
                "create the LLM after the fork, or start processes with `spawn`",
            )
        result: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise closed_error()
            self._send(result, work)
        return result

    def start(self, task: Task) -> None:
        """Submit the sequences of a task. Raises what `Task.submit` raises."""
        try:
            self.call(lambda engine: self._begin(task))
        except BaseException:  # Ctrl-C: the task may have begun
            self.cancel(task)
            raise

    def attach(self, task: Task) -> None:
        """Begin a task that has no sequences yet, without waiting for that."""
        with self._lock:
            if self._closed:
                raise closed_error()
            self._send(Future(), lambda engine: self._tasks.append(task))

    def post(self, task: Task, work: Callable[[], None]) -> None:
        """Have `work` run before the next step, without waiting; the task gets its error."""

        def call() -> None:
            try:
                work()
            except BaseException as error:
                self._fail(task, error)

        if not self._closed:
            self._calls.put(call)

    def run(self, task: Task) -> None:
        """Submit the sequences of a task and wait for its end. Raises its error."""

        def begin(engine: Engine) -> None:
            try:
                self._begin(task)
            except BaseException as error:
                task.end(error)

        try:
            self._ask(begin)  # waiting for this too would wake the caller twice
            task.wait()
        except BaseException:
            self.cancel(task)
            raise

    def cancel(self, task: Task) -> None:
        """End a task before the next step, without waiting for that.

        Nothing happens when the task has ended. Takes no lock, so finalizers may call it.
        """
        if not self._closed:  # a call that is never run would keep the engine alive
            self._calls.put(lambda: self._cancel(task))

    def stop(self, task: Task) -> None:
        """Cancel a task that was started, and wait until its sequences have ended."""
        self.cancel(task)
        task.wait_for_end()

    def wake(self) -> None:
        """Make the worker ask its tasks again whether they need a step. Takes no lock."""
        self._calls.put(_nothing)

    def close(self) -> None:
        """End every task with an error, close the engine and stop the thread.

        In a forked process there is no thread, and nothing happens.
        """
        if os.getpid() != self._process:
            return
        result: Future[None] = Future()
        with self._lock:
            is_first, self._closed = not self._closed, True
            if is_first and self._thread is not None:
                self._send(result, self._shut)
                self._calls.put(None)
        if is_first and self._thread is None:
            self._shut(self._engine)
        elif is_first:
            result.result()
        if self._thread is not None:
            self._thread.join()

    def _stop(self) -> None:
        """Stop the thread at the end of the interpreter."""
        if os.getpid() != self._process:  # a fork may have copied the lock while it was held
            return
        with self._lock:
            self._closed = True
            thread = self._thread
            self._calls.put(None)
        if thread is not None:
            thread.join()

    def _send(self, result: Future[T], work: Callable[[Engine], T]) -> None:
        """Queue a call; the caller holds the lock."""

        def call() -> None:
            try:
                result.set_result(work(self._engine))
            except BaseException as error:  # raised where the result is waited for
                result.set_exception(error)

        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve,
                args=(weakref.ref(self), self._calls),
                name="zinc-engine",
                daemon=True,
            )
            self._thread.start()
            _running.add(self)
        self._calls.put(call)

    # -- in the worker's thread -----------------------------------------------------------------

    def _run(self, call: _Call | None) -> bool:
        """Run a call, then further calls and steps while any task wants a step.

        Returns False at the end of the thread.
        """
        while call is not None:
            call()
            while self._calls.empty():
                if not any(task.wants_step for task in self._tasks):
                    return True
                self._step()
            call = self._calls.get()
        return False

    def _step(self) -> None:
        """Run a step of the engine, and let each task collect its results."""
        try:
            self._engine.step()
        except BaseException as error:  # a bug: it is unknown which part of the step has run
            for task in list(self._tasks):
                self._fail(task, error)
            return
        for task in list(self._tasks):
            self._collect(task)

    def _begin(self, task: Task) -> None:
        """Submit the sequences of a task and add the task."""
        try:
            task.submit(self._engine)
        except BaseException:
            self._cancel_sequences(task)
            raise
        self._tasks.append(task)
        if all(s.finish_reason is not None for s in task.sequences):
            self._collect(task)

    def _collect(self, task: Task) -> None:
        """Let a task collect its results; end it if it is complete or fails."""
        try:
            has_ended = task.collect(self._engine)
        except BaseException as error:
            self._fail(task, error)
        else:
            if has_ended:
                self._end(task, None)

    def _fail(self, task: Task, error: BaseException) -> None:
        """Report an error to a task, and end the task if that is wanted."""
        if task.fail(error) and task in self._tasks:
            self._end(task, error)

    def _cancel(self, task: Task) -> None:
        """End a task, if it has not ended."""
        if task in self._tasks:
            self._end(task, None)

    def _end(self, task: Task, error: BaseException | None) -> None:
        """Remove a task, cancel its sequences and wake its caller, which raises `error` if given.

        If it was the last task, the prefix cache is written to disk before the caller goes on.
        """
        self._tasks.remove(task)
        try:
            self._cancel_sequences(task)
            if not self._tasks:
                self._engine.flush()
        except BaseException as failure:
            error = error or failure
        task.end(error)

    def _cancel_sequences(self, task: Task) -> None:
        for s in task.sequences:
            self._engine.cancel(s)

    def _shut(self, engine: Engine) -> None:
        """End all tasks with an error and close the engine."""
        for task in list(self._tasks):
            self._end(task, closed_error())
        engine.close()


def _serve(worker: weakref.ref[EngineWorker], calls: queue.SimpleQueue[_Call | None]) -> None:
    """Run calls until the worker is stopped or garbage-collected.

    Between calls this thread holds no reference to the worker, so a model that is not in use can be
    garbage-collected.
    """
    while True:
        call = calls.get()
        owner = worker()
        if owner is None or not owner._run(call):
            return
        del call, owner


def _nothing() -> None:
    pass


_running: weakref.WeakSet[EngineWorker] = weakref.WeakSet()


@atexit.register
def _stop_threads() -> None:
    """Stop every worker before the interpreter exits.

    A thread that returned from native code later would be terminated inside that code.
    """
    for worker in list(_running):
        worker._stop()
