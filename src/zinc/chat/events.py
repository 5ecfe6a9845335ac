"""What a model's answer consists of, as it arrives: text, reasoning, and calls of tools.

A call is one `CallStart`, any number of `CallArguments`, one `CallEnd`, with nothing in between.
Its arguments are JSON text, whatever the model's own notation was. The markers around reasoning and
calls, and blank space next to them, are in no event; every other character of an answer is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the tool `name` begins. Calls of an answer are counted from 0 by `index`."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the call's arguments, JSON text of an object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is over.

    `complete` means that all arguments came and are valid JSON; otherwise the answer was cut off,
    or departed from the format. `source` is what the model wrote, markers included.
    """

    index: int
    complete: bool
    source: str


Event: TypeAlias = Content | Reasoning | CallStart | CallArguments | CallEnd


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbouring pieces joined."""
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
    """A call as a whole; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False
    source: str = ""


@dataclass(slots=True)
class Answer:
    """An answer put together from its events."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Answer:
        answer = cls()
        for event in merged(events):
            answer.add(event)
        return answer

    def add(self, event: Event) -> None:
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
        """The assistant message of OpenAI's chat API, with `reasoning_content` where there is
        reasoning. `content` is None when there are only calls.
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
