"""The input of a format's parser: characters and control tokens, one at a time.

A parser is a generator. It asks for the next item with `yield` and is resumed when one arrives, so
it is written as if the whole text were there, and its result cannot depend on how the text was
split. An item is a character, a `Mark` (a control token, by its text) or END. Items can be put
back, which turns text that only looked like a call into text again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, str, T]
Sink: TypeAlias = Callable[[str], None]

END = ""
_MAX_NAME_CHARS = 256
SPACE = frozenset(" \t\r\n")


class Mark(str):
    """A control token, as opposed to the same characters as text."""

    __slots__ = ()


class MalformedError(Exception):
    """The text does not follow the format. The parser catches this itself."""


class Markers:
    """Markers to look for. Those in `controls` are found only as a `Mark`, others also as text."""

    def __init__(self, texts: Iterable[str], controls: frozenset[str]) -> None:
        self.texts = frozenset(texts)
        self.spelled = self.texts - controls
        self.prefixes = frozenset(
            text[:n] for text in self.spelled for n in range(1, len(text) + 1)
        )


class Reader:
    """Reader of items that can put back those it read since the last `commit`.

    controls: markers that are control tokens of the vocabulary. limit: reading more items than this
    without a commit raises MalformedError, which limits how much text is held back.
    """

    def __init__(self, controls: frozenset[str] = frozenset()) -> None:
        self.controls = controls
        self.limit: int | None = None
        self._log: list[str] = []
        self._back: list[str] = []
        self._ended = False

    @property
    def position(self) -> int:
        """The number of items read since the last commit."""
        return len(self._log)

    def commit(self, keep: int = 0) -> str:
        """Accept the items read so far, except the last `keep`, and return their text.

        Accepted items can no longer be put back.
        """
        end = len(self._log) - keep
        text = "".join(self._log[:end])
        del self._log[:end]
        return text

    def rewind(self, position: int = 0) -> None:
        """Put back the items that were read after `position`."""
        self._back.extend(reversed(self._log[position:]))
        del self._log[position:]

    def unread(self, item: str) -> None:
        """Put back the item that was read last."""
        if item != END:
            self.rewind(len(self._log) - 1)

    def fail(self, item: str) -> MalformedError:
        """Put back the last item, and return an error for it."""
        self.unread(item)
        return MalformedError(item)

    def read(self) -> Steps[str]:
        """Return the next item; at the end of the answer, always END."""
        if self._back:
            item = self._back.pop()
        elif self._ended:
            return END
        else:
            item = yield
            if item == END:
                self._ended = True
                return END
        self._log.append(item)
        if self.limit is not None and len(self._log) > self.limit:
            raise MalformedError("too long")
        return item

    def next(self) -> Steps[str]:
        """Skip white space and return the next item."""
        while True:
            item = yield from self.read()
            if item not in SPACE:
                return item

    def peek(self) -> Steps[str]:
        """Skip white space and return the next item without reading it."""
        item = yield from self.next()
        self.unread(item)
        return item

    def expect(self, char: str) -> Steps[None]:
        """Skip white space and read `char`. Raises MalformedError if another item follows."""
        item = yield from self.next()
        if item != char:
            raise self.fail(item)

    def match(self, text: str) -> Steps[bool]:
        """Read `text` if it comes next; return whether it does."""
        start = self.position
        item = yield from self.read()
        if isinstance(item, Mark) or text in self.controls:
            found = isinstance(item, Mark) and item == text
        else:
            found = item == text[0]
            for char in text[1:]:
                if not found:
                    break
                found = (yield from self.read()) == char
        if not found:
            self.rewind(start)
        return found

    def match_after_space(self, text: str) -> Steps[bool]:
        """Read white space and `text` if they come next; return whether they do."""
        start = self.position
        yield from self.peek()
        found = yield from self.match(text)
        if not found:
            self.rewind(start)
        return found

    def markers(self, texts: Iterable[str]) -> Markers:
        """Return the markers to look for with `scan`."""
        return Markers(texts, self.controls)

    def scan(self, markers: Markers, sink: Sink, remember: bool = True) -> Steps[str]:
        """Pass text to `sink` up to one of `markers` or the end; return the marker or END.

        remember: keep the text so that it can be put back; otherwise only the marker can be.
        """
        held = ""
        while True:
            item = yield from self.read()
            if item == END or isinstance(item, Mark):
                if held:
                    sink(held)
                if item == END or item in markers.texts:
                    if not remember:
                        self.commit(keep=1 if item else 0)
                    return str(item)
                sink(str(item))
                held = ""
            elif held or item in markers.prefixes:
                held += item
                while held and held not in markers.prefixes:
                    sink(held[0])
                    held = held[1:]
            else:
                sink(item)
            if not remember:
                self.commit(keep=len(held))
            if held in markers.spelled:
                return held

    def until(self, *markers: str) -> Steps[tuple[str, str]]:
        """Read up to the first of `markers`, and return the text before it and the marker.

        Raises MalformedError if the answer ends first, or if the text is too long for a name.
        """
        parts: list[str] = []

        def add(text: str) -> None:
            if len(parts) == _MAX_NAME_CHARS:
                raise MalformedError("too long")
            parts.append(text)

        marker = yield from self.scan(self.markers(markers), add)
        if marker == END:
            raise MalformedError("cut off")
        return "".join(parts), marker
