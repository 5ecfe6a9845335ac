"""Granite 3: <|tool_call|> before a JSON list of calls.

Reasoning is between <think> and </think>.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.json_call import read_json_call, read_json_calls
from zinc.chat.output import Output
from zinc.chat.reader import Reader, Steps

_CALLS = "<|tool_call|>"


def _read_calls(reader: Reader, output: Output) -> Steps[None]:
    if (yield from reader.peek()) == "[":
        yield from read_json_calls(reader, output)
        return
    yield from read_json_call(reader, output)
    output.end()


GRANITE = ChatFormat(
    name="granite",
    markers=(_CALLS, THINK.begin, THINK.end),
    thinking=THINK,
    calls={_CALLS: _read_calls},
)
