"""Input of the format parsers: characters and control tokens, one at a time.

A parser is a generator that asks for an item with `yield` and is resumed when one arrives, so its
code reads like one for a whole text, and where the text was cut cannot matter. An item is one
character, a `Mark` (a control token, as its text), or END. What was read can be put back: that is
how text which only looked like a call becomes text again.
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
    """A control token of the vocabulary; unlike these characters written one by one."""

    __slots__ = ()


class MalformedError(Exception):
    """The text is not in the format. Never leaves the parser."""


class Markers:
    """Texts to look for. Those in `controls` count only as a Mark, others also spelled out."""

    def __init__(self, texts: Iterable[str], controls: frozenset[str]) -> None:
        self.texts = frozenset(texts)
        self.spelled = self.texts - controls
        self.prefixes = frozenset(
            text[:n] for text in self.spelled for n in range(1, len(text) + 1)
        )


class Reader:
    """Hands out items and remembers those since the last `commit`.

    `controls` are the markers that are control tokens of the vocabulary. Reading more than `limit`
    items without a commit is malformed: it bounds what is held back and read again. `is_matching`:
    what was read last may be the beginning of a marker.
    """

    def __init__(self, controls: frozenset[str] = frozenset()) -> None:
        self.controls = controls
        self.limit: int | None = None
        self.is_matching = False
        self._log: list[str] = []
        self._back: list[str] = []
        self._ended = False

    @property
    def position(self) -> int:
        return len(self._log)

    def commit(self, keep: int = 0) -> str:
        """Forget all but the last `keep` items, which can no longer be put back. Their text."""
        end = len(self._log) - keep
        text = "".join(self._log[:end])
        del self._log[:end]
        return text

    def rewind(self, position: int = 0) -> None:
        """Put back what was read after `position`."""
        self._back.extend(reversed(self._log[position:]))
        del self._log[position:]

    def unread(self, item: str) -> None:
        """Put back the item that was read last."""
        if item != END:
            self.rewind(len(self._log) - 1)

    def fail(self, item: str) -> MalformedError:
        """`item`, read last, does not belong here."""
        self.unread(item)
        return MalformedError(item)

    def read(self) -> Steps[str]:
        """The next item; END for ever once the answer is over."""
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
        """The next item that is not blank."""
        while True:
            item = yield from self.read()
            if item not in SPACE:
                return item

    def peek(self) -> Steps[str]:
        """The next item that is not blank; it stays to be read. The blanks before it do not."""
        item = yield from self.next()
        self.unread(item)
        return item

    def expect(self, char: str) -> Steps[None]:
        """Read `char`, with blanks before it. Raises MalformedError."""
        item = yield from self.next()
        if item != char:
            raise self.fail(item)

    def match(self, text: str) -> Steps[bool]:
        """Read `text`, if it comes next."""
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
        """Read `text`, with blanks before it, if it comes next."""
        start = self.position
        yield from self.peek()
        found = yield from self.match(text)
        if not found:
            self.rewind(start)
        return found

    def markers(self, texts: Iterable[str]) -> Markers:
        return Markers(texts, self.controls)

    def scan(self, markers: Markers, sink: Sink, remember: bool = True) -> Steps[str]:
        """Pass text on until one of the markers was read, or END. The marker or END.

        Without `remember`, what was passed on is committed at once and only the marker is not.
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
            self.is_matching = held != "" and held not in markers.spelled
            if held in markers.spelled:
                return held

    def until(self, *markers: str) -> Steps[tuple[str, str]]:
        """The text before the first of the markers, and the marker: for names and the like.

        Raises MalformedError when the answer ends first, or the text is too long for a name.
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
