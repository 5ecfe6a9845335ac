"""The output of a format's parser: collects events and drops white space around markers.

The line breaks that models write around markers belong neither to the text nor to the markers.
White space is therefore held
back: it is kept if text follows, and dropped if a marker follows.
"""

from __future__ import annotations

from collections.abc import Callable

from zinc.chat.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning, merged
from zinc.chat.reader import SPACE, MalformedError, Reader
from zinc.chat.schema import Tools

# Most characters of a call before its name and the start of its arguments must be known.
HEAD_LIMIT = 8192
_MAX_NAME_CHARS = 256


class Output:
    """The events of an answer, collected by the parsers of chat formats.

    tools: the tools of the request; None means that calls are not parsed. is_thinking: the answer
    is within its reasoning. is_open: a call has started and not ended. is_whole: the arguments of
    the open call are complete.
    """

    def __init__(self, reader: Reader, tools: Tools | None, new_id: Callable[[], str]) -> None:
        self.tools = tools
        self.is_thinking = False
        self.is_open = False
        self.is_whole = False
        self._reader = reader
        self._new_id = new_id
        self._events: list[Event] = []
        self._blanks = ""
        self._trim = False
        self._n_calls = 0

    def take(self) -> list[Event]:
        """Return the events since the last `take`, with neighbouring pieces joined."""
        events, self._events = self._events, []
        return merged(events)

    def content(self, text: str) -> None:
        """Add text of the answer."""
        self._text(Content, text)

    def reasoning(self, text: str) -> None:
        """Add text of the reasoning."""
        self._text(Reasoning, text)

    def _text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if text in SPACE:
            self._blanks += text
            return
        if not self._trim:
            text = self._blanks + text
        self._blanks, self._trim = "", False
        self._events.append(kind(text))

    def _boundary(self) -> None:
        self._blanks, self._trim = "", True

    def open_reasoning(self) -> None:
        """Start the reasoning."""
        self._boundary()
        self.is_thinking = True

    def close_reasoning(self) -> None:
        """End the reasoning."""
        self._boundary()
        self.is_thinking = False

    def knows(self, name: str) -> bool:
        """Return whether the request has a tool called `name`."""
        return self.tools is not None and name in self.tools

    def start(self, name: str, id: str | None = None) -> None:
        """Start a call. Raises MalformedError if `name` cannot be the name of a tool."""
        if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
            raise MalformedError("no name")
        self._boundary()
        self._reader.limit = None
        self.is_open = True
        self._events.append(CallStart(self._n_calls, id or self._new_id(), name))

    def arguments(self, text: str) -> None:
        """Add a piece to the arguments of the open call."""
        if text:
            self._events.append(CallArguments(self._n_calls, text))

    def end_arguments(self) -> None:
        """Mark the arguments of the open call as complete."""
        self.is_whole = True

    def end(self) -> None:
        """End the open call. Its source is the text that was read since the last commit."""
        self._events.append(CallEnd(self._n_calls, self.is_whole, self._reader.commit()))
        self._n_calls += 1
        self.is_open = self.is_whole = False
        self._reader.limit = HEAD_LIMIT

    def finish(self) -> None:
        """End the answer. White space that was held back becomes part of the text before it."""
        if self._blanks and not self._trim:
            kind = Reasoning if self.is_thinking else Content
            self._events.append(kind(self._blanks))
        self._blanks = ""
