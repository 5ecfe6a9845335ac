"""Events of a streamed answer: text, reasoning and tool calls.

A call is one `CallStart`, any number of `CallArguments` and one `CallEnd`, with no other events in
between. Its arguments are JSON text, even if the model writes another notation. The events contain
every character of an answer except the markers around reasoning and calls, and the white space next
to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any, TypeAlias

from zinc.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call of the tool `name`. index: number of the call in the answer, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments. The pieces together are the JSON text of an object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call.

    complete: all arguments are there and are valid JSON; false if the answer was cut off or left
    the format. source: the text of the call as the model wrote it, with markers.
    """

    index: int
    complete: bool
    source: str


Event: TypeAlias = Content | Reasoning | CallStart | CallArguments | CallEnd


def merged(events: Iterable[Event]) -> list[Event]:
    """Return `events` with neighbouring pieces of the same kind joined."""
    runs: list[tuple[Event, list[str]]] = []
    for event in events:
        text = getattr(event, "text", "")
        if runs and _joins(runs[-1][0], event):
            runs[-1][1].append(text)
        else:
            runs.append((event, [text]))
    return [_with_text(event, "".join(texts)) for event, texts in runs]


def _joins(event: Event, next: Event) -> bool:
    match event, next:
        case (Content(), Content()) | (Reasoning(), Reasoning()):
            return True
        case CallArguments(index=index), CallArguments(index=other):
            return index == other
    return False


def _with_text(event: Event, text: str) -> Event:
    match event:
        case Content():
            return Content(text)
        case Reasoning():
            return Reasoning(text)
        case CallArguments(index=index):
            return CallArguments(index, text)
    return event


@dataclass(slots=True)
class Call:
    """A whole call. arguments: JSON text."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False
    source: str = ""


@dataclass(slots=True)
class Answer:
    """A whole answer, built from its events."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Answer:
        """Return the answer that consists of `events`."""
        answer = cls()
        for event in merged(events):
            answer.add(event)
        return answer

    def add(self, event: Event) -> None:
        """Add an event to the answer."""
        match event:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case CallStart(_, id, name):
                self.calls.append(Call(id, name))
            case CallArguments(index, text):
                self.calls[index].arguments += text
            case CallEnd(index, complete, source):
                self.calls[index].complete = complete
                self.calls[index].source = source

    def message(self) -> dict[str, Any]:
        """Return the answer as an assistant message of OpenAI's chat API.

        `reasoning_content` is present only if there is reasoning; `content` is None if there are
        only calls.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["content"] = self.content or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return message
