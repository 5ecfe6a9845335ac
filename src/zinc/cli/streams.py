"""Standard input and output of a command: closed ones, terminals, pipes."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

from zinc.core.terminal import TerminalOutput

PATIENCE_S = 3.0


@contextmanager
def standard_streams() -> Iterator[None]:
    """Make `sys.stdin`, `sys.stdout` and `sys.stderr` safe to use for one command.

    A stream that the caller closed is replaced by the null device. Characters that the output
    encoding cannot represent are written as "?". Output to a terminal passes `TerminalOutput`.
    """
    with ExitStack() as stack:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            stream = getattr(sys, name)
            if stream is None:
                _replace(stack, name, stack.enter_context(open(os.devnull, mode)))
            elif isinstance(stream, io.TextIOWrapper) and name != "stdin":
                stream.reconfigure(errors="replace")
                if stream.isatty():
                    _replace(stack, name, TerminalOutput(stream))
        yield


def _replace(stack: ExitStack, name: str, stream: IO[str]) -> None:
    stack.callback(setattr, sys, name, getattr(sys, name))
    setattr(sys, name, stream)


def has_piped_input() -> bool:
    """Return whether standard input is a pipe, a socket or a file.

    A terminal and a device such as /dev/null are none of these, nor is a closed stdin.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:  # a stream in memory, or a replacement by a calling program
        return isinstance(sys.stdin, io.TextIOWrapper)
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def wait_for_input() -> None:
    """Wait for standard input; say so on stderr when nothing comes for PATIENCE_S seconds.

    A process may inherit a pipe that nobody writes to, and would appear to hang.
    """
    try:
        ready, _, _ = select.select([sys.stdin], [], [], PATIENCE_S)
    except (OSError, ValueError):  # a stream in memory, or a kind that the system cannot wait for
        return
    if not ready and not sys.stdin.isatty():
        hint = "`< /dev/null` starts without it"
        print(f"zinc: waiting for text on standard input; {hint}", file=sys.stderr)
