"""Splits an answer, as it streams, into what the model thought and what it says.

Models that reason write <think>...</think> before the answer, or their template has opened the tag
already. Only a tag at the very beginning counts: one in the middle of an answer is the answer's.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"


class Piece(NamedTuple):
    text: str
    is_reasoning: bool


class _State(Enum):
    START = auto()
    OPENED = auto()  # between the opening tag and the first character of the reasoning
    REASONING = auto()
    AFTER = auto()  # between the closing tag and the first character of the answer
    ANSWER = auto()


class ReasoningSplitter:
    """Push text, get pieces. Nothing is lost but the tags and the blank space around them."""

    def __init__(self, prompt: str = "") -> None:
        """`prompt` is the rendered prompt that the answer continues."""
        opened = prompt.rstrip().endswith(OPEN)
        self._state = _State.OPENED if opened else _State.START
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._advance(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back because it could have become a tag."""
        held, self._held = self._held, ""
        return [Piece(held, self._state is _State.REASONING)] if held else []

    def _advance(self, pieces: list[Piece]) -> bool:
        """Takes one piece off the held text; False when more text is needed first."""
        match self._state:
            case _State.START:
                stripped = self._held.lstrip()
                if stripped.startswith(OPEN):
                    self._held = stripped[len(OPEN) :]
                    self._state = _State.OPENED
                elif OPEN.startswith(stripped):
                    return False
                else:
                    self._state = _State.ANSWER
            case _State.OPENED:
                self._held = self._held.lstrip("\n")
                if self._held:
                    self._state = _State.REASONING
            case _State.REASONING:
                thought, tag, rest = self._held.partition(CLOSE)
                if tag:
                    self._held = rest
                    self._state = _State.AFTER
                else:
                    end = len(thought) - _overlap(thought, CLOSE)
                    thought, self._held = thought[:end], thought[end:]
                if thought:
                    pieces.append(Piece(thought, True))
                return bool(tag)
            case _State.AFTER:
                self._held = self._held.lstrip()
                if self._held:
                    self._state = _State.ANSWER
            case _State.ANSWER:
                pieces.append(Piece(self._held, False))
                self._held = ""
        return True


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` begin `tag`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
