"""Answers as Anthropic's content blocks, whole and streamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from zinc.chat.events import Answer, CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from zinc.server.apis.anthropic.request import tool_use_id
from zinc.server.errors import ApiError
from zinc.server.http.body import parse_json


def content_blocks(found: Answer) -> list[dict[str, Any]]:
    """Return the content blocks of an answer. The signature of thinking blocks is empty."""
    blocks: list[dict[str, Any]] = []
    if found.reasoning:
        blocks.append({"type": "thinking", "thinking": found.reasoning, "signature": ""})
    if found.content or not (found.calls or found.reasoning):
        blocks.append({"type": "text", "text": found.content})
    return blocks + [
        {
            "type": "tool_use",
            "id": tool_use_id(call.id),
            "name": call.name,
            "input": _input(call.arguments),
        }
        for call in found.calls
    ]


def _input(arguments: str) -> Mapping[str, Any]:
    """Return a call's arguments as an object.

    Arguments of a cut answer give the members that are whole, as Anthropic's clients make of the
    same answer in a stream. Other text that is not an object gives an empty one.
    """
    try:
        value = parse_json(arguments.encode())
    except ApiError:
        value = _beginning(arguments)
    return value if isinstance(value, dict) else {}


def _beginning(text: str) -> object:
    """Return the value of a JSON text without its end, or None for other text."""
    try:
        return from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return None


class BlockEvents:
    """Converter of an answer's events to Anthropic's, which open, extend and close blocks.

    The methods return pairs of an event's name and data.
    """

    def __init__(self) -> None:
        self._index = -1
        self._kind: str | None = None

    def push(self, item: Event) -> list[tuple[str, dict[str, Any]]]:
        """Add an event of the answer."""
        match item:
            case Content(text):
                opened = self._open("text", {"type": "text", "text": ""})
                return [*opened, self._delta({"type": "text_delta", "text": text})]
            case Reasoning(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                opened = self._open("thinking", empty)
                return [*opened, self._delta({"type": "thinking_delta", "thinking": text})]
            case CallStart(_, id, name):
                block: dict[str, Any] = {
                    "type": "tool_use", "id": tool_use_id(id), "name": name, "input": {}
                }  # fmt: skip
                return [*self._end(), *self._open("tool_use", block)]
            case CallArguments(_, text):
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case CallEnd():
                return self._end()

    def close(self) -> list[tuple[str, dict[str, Any]]]:
        """Close the last block. An empty answer gets an empty text block."""
        opened = self._open("text", {"type": "text", "text": ""}) if self._index < 0 else []
        return [*opened, *self._end()]

    def _open(self, kind: str, block: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        if self._kind == kind:
            return []
        ended = self._end()
        self._index += 1
        self._kind = kind
        data = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*ended, ("content_block_start", data)]

    def _end(self) -> list[tuple[str, dict[str, Any]]]:
        if self._kind is None:
            return []
        self._kind = None
        data = {"type": "content_block_stop", "index": self._index}
        return [("content_block_stop", data)]

    def _delta(self, delta: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        data = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return ("content_block_delta", data)
