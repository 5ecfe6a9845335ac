"""Worker processes that run chat templates, which are untrusted code (see `zinc.chat.worker`).

A few workers are kept running and shared by all templates. A rendering that exceeds its time or
memory limit ends its worker, which is replaced. Other renderings are not affected. The time limit
is one of CPU time, so that templates do not exceed it because a machine is busy. Windows has no
timer of CPU time, so there the limit is one of wall-clock time.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zinc.chat.worker import READY, REPLY, REQUEST, STOPPED, TEXT, TIMES_ITSELF
from zinc.core.errors import ZincError

DEADLINE_S = 2.0  # of CPU time
MEMORY_BYTES = 208 << 20  # besides about 20 MB for the process itself
MAX_WORKERS = 4
_SCRIPT = Path(__file__).absolute().with_name("worker.py")
# Time that may pass on a busy machine: for the imports of a worker, and for a rendering besides its
# limit of CPU time.
_START_S = _BUSY_S = 60.0
_MAX_REPLY_BYTES = 1 << 30
# The worker gets no other environment variables, since these can contain secrets.
_ENVIRONMENT = ("TZ", "TZDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


class RenderError(Exception):
    """A template failed. what, why: clauses for the message. stopped: a limit ended it."""

    def __init__(self, what: str, why: str, stopped: bool = False) -> None:
        super().__init__(what, why)
        self.what, self.why, self.stopped = what, why, stopped


class Renderer:
    """A pool of at most `max_workers` processes that render templates. Thread-safe.

    seconds, memory_bytes: limits of one rendering: CPU time, and memory besides a multiple of the
    size of the variables.
    """

    def __init__(
        self,
        seconds: float = DEADLINE_S,
        memory_bytes: int = MEMORY_BYTES,
        max_workers: int = MAX_WORKERS,
    ) -> None:
        self.seconds = seconds
        self._memory_bytes, self._max_workers = memory_bytes, max_workers
        self._reset()
        _renderers.add(self)

    def _reset(self) -> None:
        self._idle: list[_Worker] = []
        self._slots = threading.BoundedSemaphore(self._max_workers)

    def start(self) -> None:
        """Start a worker unless one is idle, so that the first rendering need not wait for it.

        A failure is reported by the first rendering.
        """
        if not self._idle:
            with contextlib.suppress(ZincError):
                self._idle.append(_Worker(self.seconds, self._memory_bytes))

    def check(self, source: str) -> None:
        """Compile `source`. Raises RenderError, and ZincError if no worker can be started."""
        self._ask(source, None)

    def render(self, source: str, variables: Mapping[str, Any]) -> str:
        """Return the output of the template `source` for `variables`.

        Variables are plain data: None, booleans, numbers, text, and lists, tuples and dictionaries
        of these. Raises RenderError if the template fails or is stopped, and ZincError if no worker
        can be started.
        """
        return self._ask(source, dict(variables))

    def _ask(self, source: str, variables: dict[str, Any] | None) -> str:
        request = marshal.dumps((source, variables))
        with self._slots:
            worker = self._take()
            try:
                text = worker.ask(request)
            except RenderError as error:
                if error.stopped:
                    worker.close()
                    self.start()
                else:
                    self._idle.append(worker)
                raise
            except BaseException:  # a late reply must not be read by another rendering
                worker.close()
                raise
            self._idle.append(worker)
            return text

    def _take(self) -> _Worker:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last one
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                worker.close()
        return _Worker(self.seconds, self._memory_bytes)

    def close(self) -> None:
        """End the idle workers. A later rendering starts a new one."""
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Drop the workers after a fork; they belong to the parent process."""
        for worker in self._idle:
            worker.close_pipes()
        self._reset()

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """A process that renders one template at a time. Raises ZincError if it cannot be started."""

    def __init__(self, seconds: float, memory_bytes: int) -> None:
        self._seconds = seconds
        self._is_ready = False
        # -I and -S: only the standard library and the folders below can be imported.
        command = [sys.executable, "-I", "-S", str(_SCRIPT), str(seconds), str(memory_bytes)]
        try:
            self._process = subprocess.Popen(
                [*command, *_folder_of("jinja2"), *_folder_of("markupsafe")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # Ctrl-C must only reach the parent
            )
        except (OSError, TypeError) as error:  # TypeError: there is no sys.executable
            raise _cannot_start(str(error)) from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes) -> str:
        """Return the reply to `request`.

        Raises RenderError (with `stopped` if the worker cannot be used again), and ZincError if the
        worker did not start.
        """
        if not self._is_ready:
            with self._deadline(_START_S):
                self._is_ready = self._read_reply() == (READY, b"")
            if not self._is_ready:
                raise _cannot_start(f"it ended with {self._end()}")
        began = time.monotonic()
        limit_s = self._seconds + (_BUSY_S if TIMES_ITSELF else 0)
        with self._deadline(limit_s):
            with contextlib.suppress(BrokenPipeError):  # the missing reply is handled below
                self._stdin.write(REQUEST.pack(len(request)))
                self._stdin.write(request)
                self._stdin.flush()
            reply = self._read_reply()
        # The timer may have killed the worker just after its reply.
        if time.monotonic() - began >= limit_s:
            raise RenderError("was stopped", f"it took more than {limit_s:g} s", True)
        if reply is None:
            end = self._end()
            why = f"its process ended with {end}"
            if end == "SIGPROF":
                why = f"it ran for more than {self._seconds:g} s"
            raise RenderError("was stopped", why, True)
        status, text = reply
        if status == TEXT:
            return text.decode("utf-8", "surrogatepass")
        what, _, why = text.decode("utf-8", "replace").partition("\0")
        raise RenderError(what, why, status == STOPPED)

    def _read_reply(self) -> tuple[int, bytes] | None:
        """Return the status and the text of a reply, or None if the process ended."""
        head = self._stdout.read(REPLY.size)
        if len(head) < REPLY.size:
            return None
        status, size = REPLY.unpack(head)
        text = self._stdout.read(min(size, _MAX_REPLY_BYTES))
        return None if len(text) < size else (status, text)

    @contextlib.contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Kill the process if the block takes longer, which ends a read of its pipes."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self) -> str:
        """Wait for the end of the process and return its status as text."""
        self.close()
        code = self._process.returncode
        if code >= 0:
            return f"status {code}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        with contextlib.suppress(OSError):  # a request that could not be written
            self._stdin.close()
        self._stdout.close()


def _folder_of(package: str) -> list[str]:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise _cannot_start(f"the package {package} is missing")
    return [str(Path(spec.origin).absolute().parent.parent)]


def _cannot_start(why: str) -> ZincError:
    what = "the process that renders chat templates cannot be started"
    return ZincError(what, why, "check that this Python can start processes and has jinja2")


_renderers: weakref.WeakSet[Renderer] = weakref.WeakSet()
SHARED = Renderer()


def _for_each(work: str) -> None:
    for renderer in list(_renderers):
        getattr(renderer, work)()


atexit.register(_for_each, "close")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _for_each("forget"))
