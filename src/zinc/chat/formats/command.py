"""Command R7B and A: a JSON list of calls between <|START_ACTION|> and <|END_ACTION|>.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "name", "parameters": {...}}
    ]<|END_ACTION|>

Reasoning is between <|START_THINKING|> and <|END_THINKING|>, and the text of an answer between
<|START_RESPONSE|> and <|END_RESPONSE|>, or START_TEXT and END_TEXT.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat, Thinking
from zinc.chat.formats.json_call import read_json_calls
from zinc.chat.output import Output
from zinc.chat.reader import Reader, Steps

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
_THINK = Thinking("<|START_THINKING|>", "<|END_THINKING|>", resume="")
_AROUND_TEXT = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")


def _read_calls(reader: Reader, output: Output) -> Steps[None]:
    yield from read_json_calls(reader, output)
    yield from reader.match_after_space(_CLOSE)


def _skip(reader: Reader, output: Output) -> Steps[None]:
    """Skip a marker around the text of an answer."""
    yield from ()


COMMAND = ChatFormat(
    name="command",
    markers=(_OPEN, _CLOSE, _THINK.begin, _THINK.end, *_AROUND_TEXT),
    thinking=_THINK,
    calls={_OPEN: _read_calls},
    channels=dict.fromkeys(_AROUND_TEXT, _skip),
)
