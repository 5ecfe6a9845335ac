"""Reading messages of the user: editing, paste and history on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import re
import select
import sys
from pathlib import Path
from types import ModuleType

HISTORY_ENTRIES = 1000
PROMPT, MORE = "> ", "  "
QUOTE = '"""'
# Without bracketed paste, lines that arrive within this time belong to one paste.
PASTE_S = 0.02
# Text that may precede triple quotes: nothing, or a command such as /system.
_OPENING = re.compile(rf"(/\w+ +)?(?={QUOTE})")


class LineInput:
    """Reader of one message at a time from the terminal or a pipe.

    A message is a line, a pasted block, lines that end in a backslash with the line after them, or
    the text between two triple quotes. On a terminal, messages are kept in
    $XDG_STATE_HOME/zinc/history (default ~/.local/state), which only its owner can read.
    """

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._readline = _import_readline() if self.interactive else None
        self._brackets_paste = self._readline is not None and _bracket_paste(self._readline)

    def read(self) -> str | None:
        """Return the next message, or None at the end of the input."""
        lines: list[str] = []
        while True:
            try:
                line = self._line(MORE if lines else PROMPT)
            except EOFError:
                if self.interactive:
                    print()
                return _unfinished(lines)
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                print("\n(Ctrl-D exits)")
                lines.clear()
                continue
            except UnicodeDecodeError:
                print("zinc: that line is not UTF-8 text, so it is ignored.", file=sys.stderr)
                continue
            lines.append(line)
            typed = "\n".join(lines)
            if (opening := _OPENING.match(typed)) is not None:
                quoted = unquoted(typed[opening.end() :])
                if quoted is None:
                    continue
                message = opening[0] + quoted
            elif line.endswith("\\"):
                lines[-1] = line[:-1]
                continue
            else:
                message = typed
            self._remember(typed)
            return message

    def _line(self, prompt: str) -> str:
        """Return a line, or a pasted block, as it was typed. Raises EOFError."""
        if not self.interactive:
            data = sys.stdin.buffer.readline()
            if not data:
                raise EOFError
            return data.decode().rstrip("\r\n")
        lines = [input(prompt)]
        while not self._brackets_paste and _has_more():
            try:
                lines.append(input(MORE))
            except EOFError:
                break
        return "\n".join(lines)

    def _remember(self, typed: str) -> None:
        if self._readline is None or not typed.strip():
            return
        n = self._readline.get_current_history_length()
        if n == 0 or self._readline.get_history_item(n) != typed:
            self._readline.add_history(typed)

    def __enter__(self) -> LineInput:
        if self._readline is not None:
            self._readline.set_auto_history(False)  # readline would add lines instead of messages
            self._readline.clear_history()
            for entry in read_history(_history_path()):
                self._readline.add_history(entry)
        return self

    def __exit__(self, *_: object) -> None:
        if self._readline is not None:
            n = self._readline.get_current_history_length()
            found = (self._readline.get_history_item(i + 1) for i in range(n))
            write_history(_history_path(), [entry for entry in found if entry])


def unquoted(text: str) -> str | None:
    """Return the text between triple quotes; None if `text` is not enclosed in them.

    A newline after the first quotes and one before the last quotes are dropped.
    """
    end = text.rstrip()
    if not end.startswith(QUOTE) or not end.endswith(QUOTE) or len(end) < 2 * len(QUOTE):
        return None
    return end[len(QUOTE) : -len(QUOTE)].removeprefix("\n").removesuffix("\n")


def _unfinished(lines: list[str]) -> str | None:
    """Return the unfinished message at the end of the input, if there is one."""
    text = "\n".join(lines)
    if (opening := _OPENING.match(text)) is not None:
        text = opening[0] + (unquoted(text[opening.end() :] + QUOTE) or "")
    return text if lines else None


def read_history(path: Path) -> list[str]:
    """Return the entries of a history file, oldest first; none if it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return []
    escapes = {r"\n": "\n", r"\\": "\\"}
    return [
        re.sub(r"\\[n\\]", lambda match: escapes[match[0]], line)
        for line in lines[:-1][-HISTORY_ENTRIES:]
    ]


def write_history(path: Path, entries: list[str]) -> None:
    """Write a history file, one entry a line: newlines and backslashes are escaped.

    An error is ignored: a conversation does not depend on its history.
    """
    lines = (
        entry.replace("\\", r"\\").replace("\n", r"\n") for entry in entries[-HISTORY_ENTRIES:]
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError:
        pass


def _has_more() -> bool:
    """Return whether more of a paste follows within PASTE_S seconds."""
    try:
        return bool(select.select([sys.stdin], [], [], PASTE_S)[0])
    except OSError:  # on Windows, select waits for sockets only
        return False


def _import_readline() -> ModuleType | None:
    """Return the module `readline`, if this Python has it."""
    try:
        import readline
    except ImportError:
        return None
    return readline


def _bracket_paste(readline: ModuleType) -> bool:
    """Turn bracketed paste on, which Python turns off; return whether the terminal supports it.

    libedit and dumb terminals do not.
    """
    if "libedit" in (readline.__doc__ or "") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    readline.parse_and_bind("set enable-bracketed-paste on")
    return True


def _history_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "zinc" / "history"
