"""A command on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src"
PATIENCE_S = 300  # long enough for a busy machine

# In a new session with this terminal, Ctrl-C becomes SIGINT. Steps are slow, so that answers last
# until they are interrupted.
ON_TERMINAL = """
import os, signal, sys, time
os.login_tty(os.dup(0))
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started with
from zinc.cli.main import main
from zinc.engine.engine import Engine

step = Engine.step

def slow(engine):
    time.sleep(0.5)
    return step(engine)

Engine.step = slow
sys.exit(main())
"""


class Session:
    """A command on a pseudo-terminal."""

    def __init__(self, *argv: str, **environment: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            close_fds=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm", **environment},
        )
        os.close(slave)
        self.seen = ""

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, pattern: str, timeout_s: float = PATIENCE_S) -> str:
        """Read until the pattern matches the output since the last match."""
        deadline = time.monotonic() + timeout_s
        while not (match := re.search(pattern, self.seen)):
            data = self._read(deadline)
            assert data, f"no {pattern!r} in {self.seen!r}"
            self.seen += data.decode(errors="replace")
        self.seen = self.seen[match.end() :]
        return match[0]

    def press(self, key: str, pattern: str) -> None:
        """Send a key until it has an effect: Python's readline may miss a signal."""
        for _ in range(20):
            self.send(key)
            with contextlib.suppress(AssertionError):
                self.expect(pattern, timeout_s=2)
                return
        pytest.fail(f"no {pattern!r} after {key!r}")

    def _read(self, deadline: float) -> bytes:
        """Return new output; empty at the end or after a timeout."""
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self.master], [], [], left)[0]:
            return b""
        try:
            return os.read(self.master, 4096)
        except OSError:  # how Linux reports the end of the output
            return b""

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        # A program blocks while its terminal buffer is full.
        deadline = time.monotonic() + timeout_s
        while data := self._read(deadline):
            self.seen += data.decode(errors="replace")
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
