"""Hermes, and Qwen from 2.5 to 3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.

This is the most common format; many fine-tunes and zinc's embedded model use it. Reasoning is
between <think> and </think>. A few fine-tunes write a list of calls between the tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zinc.chat.format import CallText, ChatFormat, Thinking
from zinc.chat.formats.json_call import read_json_call, read_json_calls
from zinc.chat.output import Output
from zinc.chat.reader import Reader, Steps

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _read_call(reader: Reader, output: Output) -> Steps[None]:
    if (yield from reader.peek()) == "[":
        yield from read_json_calls(reader, output)
        yield from reader.match_after_space(_CLOSE)
        return
    yield from read_json_call(reader, output)
    yield from reader.match_after_space(_CLOSE)
    output.end()


def _write_call(name: str, arguments: Mapping[str, Any] | str) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{_OPEN}\n{call}\n{_CLOSE}"


THINK = Thinking("<think>", "</think>")

HERMES = ChatFormat(
    name="hermes",
    markers=(_OPEN, _CLOSE, THINK.begin, THINK.end),
    thinking=THINK,
    calls={_OPEN: _read_call},
    text=CallText(_write_call, ("<tool_response>\n", "\n</tool_response>")),
)
