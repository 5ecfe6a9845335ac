"""Lines from the user: editing and history on a terminal, plain lines from anything else."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

HISTORY_LINES = 1000
PROMPT, MORE = "> ", "  "


class LineInput:
    """Reads one message at a time; a line that ends in a backslash goes on in the next.

    History is kept in $XDG_STATE_HOME/zinc/history (default ~/.local/state), readable by its owner
    only, and read and written only when the input is a terminal.
    """

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._history = _history_path() if self.interactive else None

    def read(self) -> str | None:
        """The next message, or None at the end of the input."""
        lines: list[str] = []
        while True:
            try:
                line = self._line(MORE if lines else PROMPT)
            except EOFError:
                if self.interactive:
                    print()
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                print("\n(Ctrl-D leaves)")
                lines.clear()
                continue
            except UnicodeDecodeError:
                print("zinc: that line is not UTF-8 text, so it is left out.", file=sys.stderr)
                continue
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _line(self, prompt: str) -> str:
        if self.interactive:
            return input(prompt)
        data = sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        return data.decode().rstrip("\r\n")

    def __enter__(self) -> LineInput:
        if self._history is not None:
            with contextlib.suppress(ImportError, OSError):
                import readline

                readline.set_history_length(HISTORY_LINES)
                readline.read_history_file(self._history)
        return self

    def __exit__(self, *_: object) -> None:
        if self._history is None:
            return
        # A conversation is not lost because its history has nowhere to go.
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.touch(mode=0o600)
            readline.write_history_file(self._history)


def _history_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "zinc" / "history"
