"""Token readers: turn the tokens of one answer into events, and find its stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from zinc.chat.events import Content, Event
from zinc.tokenizer import StreamDecoder, Tokenizer


class TokenReader(Protocol):
    """Reader of one answer: tokens in, events out.

    stopped: the stop string that ended the answer, if any. is_thinking: whether the next token
    belongs to the reasoning.
    """

    @property
    def is_thinking(self) -> bool: ...
    @property
    def stopped(self) -> str | None: ...
    def push(self, id: int) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


class PlainReader:
    """Reader of an answer that is plain text, without reasoning or calls."""

    is_thinking = False

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._decoder = StreamDecoder(tokenizer, stop)

    @property
    def stopped(self) -> str | None:
        return self._decoder.stopped

    def push(self, id: int) -> list[Event]:
        return content_events(self._decoder.push(id))

    def finish(self) -> list[Event]:
        return content_events(self._decoder.finish())


def content_events(text: str) -> list[Event]:
    """Return `text` as a list of events, which is empty for an empty text."""
    return [Content(text)] if text else []
