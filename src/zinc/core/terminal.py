"""Terminal output: text without control characters, and zinc's own escape sequences.

Text from a model or a model file may contain escape sequences that move the cursor, set the title
or inject input. `TerminalOutput` replaces control characters in all text; zinc's own
sequences go through `write_control`. Output to a file or a pipe is not changed.
"""

from __future__ import annotations

import io
import os
import re
from typing import TextIO

# C0 except tab and newline, DEL, C1, and the two overrides of text direction. A carriage return
# before a newline ends a line and is harmless.
_CONTROL = re.compile("\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202d\u202e]")


def visible(text: str) -> str:
    """Return `text` with control characters made visible.

    ASCII control characters become caret notation (`^[` for ESC, as `cat -v` prints it), all others
    U+FFFD. Tabs and newlines stay.
    """
    return _CONTROL.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"^{chr(code ^ 0x40)}" if code < 0x80 else "\ufffd"


class TerminalOutput(io.TextIOWrapper):
    """A text stream to the terminal of `stream` that makes control characters visible.

    It has its own buffer; closing it leaves the terminal open.
    """

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        terminal = io.BufferedWriter(io.FileIO(stream.fileno(), "w", closefd=False))
        super().__init__(terminal, stream.encoding, "replace", line_buffering=True)

    def write(self, text: str) -> int:
        """Write text with control characters made visible."""
        super().write(visible(text))
        return len(text)

    def write_control(self, sequence: str) -> None:
        """Write an escape sequence unchanged."""
        super().write(sequence)


def write_control(stream: TextIO, sequence: str) -> None:
    """Write an escape sequence of zinc's own to `stream`."""
    if isinstance(stream, TerminalOutput):
        stream.write_control(sequence)
    else:
        stream.write(sequence)


def is_plain(stream: TextIO) -> bool:
    """Return whether escape sequences must not be written to `stream`.

    It is a file, a pipe or a dumb terminal, or NO_COLOR is set (https://no-color.org).
    """
    return (
        not stream.isatty()
        or bool(os.environ.get("NO_COLOR"))
        or os.environ.get("TERM", "") == "dumb"
    )
