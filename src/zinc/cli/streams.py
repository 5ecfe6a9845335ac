"""Standard input and output of a command: closed ones, terminals, pipes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

from zinc.core.terminal import TerminalOutput


@contextmanager
def standard_streams() -> Iterator[None]:
    """Make `sys.stdin`, `sys.stdout` and `sys.stderr` safe to use for one command.

    A stream that the caller has closed reads nothing and discards what is written. A character that
    the output's encoding lacks becomes "?". Output to a terminal goes through `TerminalOutput`.
    """
    with ExitStack() as stack:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            stream = getattr(sys, name)
            if stream is None:
                _replace(stack, name, stack.enter_context(open(os.devnull, mode)))
            elif isinstance(stream, io.TextIOWrapper) and name != "stdin":
                stream.reconfigure(errors="replace")
                if stream.isatty():
                    terminal = TerminalOutput(stream)
                    stack.callback(terminal.detach)  # keeps the descriptor open
                    _replace(stack, name, terminal)
        yield


def _replace(stack: ExitStack, name: str, stream: IO[str]) -> None:
    stack.callback(setattr, sys, name, getattr(sys, name))
    setattr(sys, name, stream)
