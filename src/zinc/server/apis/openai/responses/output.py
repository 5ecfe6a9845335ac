"""The output of a response: its items, and the events of their creation."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from zinc.chat.events import CallArguments, CallEnd, CallStart, Content, Reasoning
from zinc.engine.sampling import Sampled
from zinc.server.apis.openai.custom_tools import text_arguments, text_of
from zinc.server.apis.openai.responses.tools import ResponseTools
from zinc.server.apis.openai.usage import chat_logprobs
from zinc.server.apis.shared.chat.answer import Piece
from zinc.tokenizer import Tokenizer

Data = dict[str, Any]

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}  # type -> member with text


class ItemEvents:
    """The items of a response and their numbered events.

    shared: members of the response object that do not change. items: the items so far. The last
    one is open while it grows.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self.items: list[Data] = []
        self._shared = dict(shared)
        self._arguments = ""  # of the last call
        self._numbers = itertools.count()
        self._open: str | None = None

    def begin(self) -> list[Data]:
        """Return the first events of a stream."""
        created = self._event("response.created", response=self._object("in_progress"))
        return [created, self.in_progress()]

    def in_progress(self) -> Data:
        """Return an event that says that the response is in progress."""
        return self._event("response.in_progress", response=self._object("in_progress"))

    def last(self, status: str, response: Data) -> Data:
        """Return the last event of a stream, with the finished response."""
        return self._event(f"response.{status}", response=response)

    def _object(self, status: str) -> Data:
        output = [dict(item) for item in self.items]
        return {
            **self._shared,
            "status": status,
            "incomplete_details": None,
            "output": output,
            "usage": None,
        }

    @property
    def _part(self) -> Data:
        part: Data = self.items[-1]["content"][0]
        return part

    def _add_text(self, text: str, logprobs: list[Data]) -> Data:
        """Append text to the open message and return its event."""
        part = self._part
        part["text"] += text
        part["logprobs"] += logprobs
        delta = self._at("response.output_text.delta", delta=text, logprobs=logprobs)
        return {**delta, "content_index": 0}

    def _add_reasoning(self, text: str) -> Data:
        """Append text to the open reasoning item and return its event."""
        self._part["text"] += text
        return {**self._at("response.reasoning_text.delta", delta=text), "content_index": 0}

    def _add_arguments(self, text: str) -> list[Data]:
        """Append text to the arguments of the open call and return its events."""
        self._arguments += text
        if self._open == "custom_tool_call":
            return []  # the input of a custom tool is sent when its arguments are complete
        self.items[-1]["arguments"] = self._arguments
        return [self._at("response.function_call_arguments.delta", delta=text)]

    def _begin(self, kind: str, **members: str) -> list[Data]:
        """Open an item of type `kind`, unless one is open already; return the events."""
        if self._open == kind and kind not in _CALLS:
            return []
        ended = self._end()
        self._open, self._arguments = kind, ""
        item: Data = {
            "id": f"{_PREFIXES[kind]}_{uuid.uuid4().hex}",
            "type": kind,
            "status": "in_progress",
            **members,
        }
        if kind in _CALLS:
            item[_CALLS[kind]] = ""
        else:
            item["content"] = []
            if kind == "message":
                item["role"] = "assistant"
            else:
                item["summary"] = []
        self.items.append(item)
        added = self._event(
            "response.output_item.added", output_index=self._index, item=_snapshot(item)
        )
        if kind in _CALLS:
            return [*ended, added]
        part: Data = {"type": "reasoning_text", "text": ""}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"].append(part)
        part_added = self._at("response.content_part.added", content_index=0, part=_snapshot(part))
        return [*ended, added, part_added]

    def _end(self, status: str = "completed") -> list[Data]:
        """Close the open item, if there is one; return the events."""
        kind, self._open = self._open, None
        if kind is None:
            return []
        item = self.items[-1]
        item["status"] = status
        events: list[Data] = []
        if kind == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            events.append(self._at("response.function_call_arguments.done", **done))
        elif kind == "custom_tool_call":
            item["input"] = text = text_of(self._arguments)
            events.append(self._at("response.custom_tool_call_input.delta", delta=text))
            events.append(self._at("response.custom_tool_call_input.done", input=text))
        else:
            part = self._part
            name = "output_text" if kind == "message" else "reasoning_text"
            done = {"text": part["text"], "content_index": 0}
            if kind == "message":
                done["logprobs"] = part["logprobs"]
            events.append(self._at(f"response.{name}.done", **done))
            events.append(
                self._at("response.content_part.done", content_index=0, part=_snapshot(part))
            )
        events.append(
            self._event("response.output_item.done", output_index=self._index, item=_snapshot(item))
        )
        return events

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    def _event(self, kind: str, **members: object) -> Data:
        return {"type": kind, "sequence_number": next(self._numbers), **members}

    def _at(self, kind: str, **members: object) -> Data:
        place = {"item_id": self.items[-1]["id"], "output_index": self._index}
        return self._event(kind, **place, **members)


class OutputItems(ItemEvents):
    """The items of a new answer, made from its pieces, and their events.

    logprobs: whether text has log-probabilities. tools: the request's tools, which determine the
    item of a call.
    """

    def __init__(
        self,
        shared: Mapping[str, Any],
        tokenizer: Tokenizer,
        logprobs: bool,
        tools: ResponseTools,
    ) -> None:
        super().__init__(shared)
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._tools = tools

    def push(self, piece: Piece) -> list[Data]:
        """Add a piece and return its events."""
        match piece.event:
            case Content(text):
                opened = self._begin("message")
                return [*opened, self._add_text(text, self._token_logprobs(piece.tokens))]
            case Reasoning(text):
                return [*self._begin("reasoning"), self._add_reasoning(text)]
            case CallStart(_, id, name):
                called = self._tools.item_of(name)
                rest = {key: value for key, value in called.items() if key != "type"}
                return [*self._end(), *self._begin(called["type"], call_id=id, **rest)]
            case CallArguments(_, text):
                return self._add_arguments(text)
            case CallEnd(_, complete):
                return self._end("completed" if complete else "incomplete")

    def close(self, cut: bool) -> list[Data]:
        """Close the last item and return its events. An empty answer gets an empty message.

        cut: the answer ended at a token limit.
        """
        opened = [] if self.items else self._begin("message")
        return [*opened, *self._end("incomplete" if cut else "completed")]

    def response(self, usage: Mapping[str, Any], cut: bool) -> Data:
        """Return the finished response. cut: the answer ended at a token limit."""
        details = {"reason": "max_output_tokens"} if cut else None
        return {
            **self._object("incomplete" if cut else "completed"),
            "completed_at": int(time.time()),
            "incomplete_details": details,
            "usage": dict(usage),
        }

    def _token_logprobs(self, tokens: Sequence[Sampled]) -> list[Data]:
        return chat_logprobs(self._tokenizer, tokens) if self._logprobs else []


class Replay(ItemEvents):
    """The events of a finished response once more, with each item's text in one delta."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        super().__init__({k: v for k, v in response.items() if k != "completed_at"})
        self._response = response

    def events(self) -> list[Data]:
        """Return the events from response.created to response.completed or incomplete."""
        found = self.begin()
        for item in self._response["output"]:
            found += self._repeat(item)
        return [*found, self.last(self._response["status"], dict(self._response))]

    def _repeat(self, item: Data) -> list[Data]:
        kind = item["type"]
        known = {"type", "status", "role", "summary", "content", _CALLS.get(kind)}
        events = self._begin(kind, **{k: v for k, v in item.items() if k not in known})
        if kind == "message":
            part = item["content"][0]
            events.append(self._add_text(part["text"], part["logprobs"]))
        elif kind == "reasoning":
            events.append(self._add_reasoning(item["content"][0]["text"]))
        elif kind == "custom_tool_call":
            events += self._add_arguments(text_arguments(item["input"]))
        else:
            events += self._add_arguments(item["arguments"])
        return [*events, *self._end(item["status"])]


def _snapshot(value: Data) -> Data:
    """Return a copy of an item or part that does not change when the item grows."""
    copied = dict(value)
    if isinstance(copied.get("content"), list):
        copied["content"] = [dict(part) for part in copied["content"]]
    return copied
