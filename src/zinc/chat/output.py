"""Output of the format parsers: collects events and decides which blank space is text.

Models put line breaks around their markers that belong to neither side. So blanks are held until it
is clear what follows them: text, and then they are text too, or a marker, and then they go.
"""

from __future__ import annotations

from collections.abc import Callable

from zinc.chat.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning, merged
from zinc.chat.reader import SPACE, MalformedError, Reader
from zinc.chat.schema import Tools

# How far a call may go before its name and the beginning of its arguments are known.
HEAD_LIMIT = 8192
_MAX_NAME_CHARS = 256


class Output:
    """Where a parser puts what it understood.

    `tools` are the tools of the request; None means that calls are not looked for. `is_thinking`
    says whether the model is in its reasoning. `is_open`: a call was started and not ended.
    `is_whole`: all arguments of the open call have come.
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
        """The events since the last call, pieces joined."""
        events, self._events = self._events, []
        return merged(events)

    def content(self, text: str) -> None:
        self._text(Content, text)

    def reasoning(self, text: str) -> None:
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
        self._boundary()
        self.is_thinking = True

    def close_reasoning(self) -> None:
        self._boundary()
        self.is_thinking = False

    def knows(self, name: str) -> bool:
        return self.tools is not None and name in self.tools

    def start(self, name: str, id: str | None = None) -> None:
        """A call begins. Raises MalformedError when this cannot be a name."""
        if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
            raise MalformedError("no name")
        self._boundary()
        self._reader.limit = None
        self.is_open = True
        self._events.append(CallStart(self._n_calls, id or self._new_id(), name))

    def arguments(self, text: str) -> None:
        """A piece of the open call's arguments."""
        if text:
            self._events.append(CallArguments(self._n_calls, text))

    def end_arguments(self) -> None:
        """What has come is a whole JSON object."""
        self.is_whole = True

    def end(self) -> None:
        """The call is over: all that was read since the last commit is its source."""
        self._events.append(CallEnd(self._n_calls, self.is_whole, self._reader.commit()))
        self._n_calls += 1
        self.is_open = self.is_whole = False
        self._reader.limit = HEAD_LIMIT

    def finish(self) -> None:
        """Nothing more comes: held blanks end the text they follow."""
        if self._blanks and not self._trim:
            kind = Reasoning if self.is_thinking else Content
            self._events.append(kind(self._blanks))
        self._blanks = ""
