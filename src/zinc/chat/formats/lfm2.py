"""LFM2: a list of Python calls between <|tool_call_start|> and <|tool_call_end|>.

    <|tool_call_start|>[get_weather(city="Oslo"), now()]<|tool_call_end|>

If the prompt requests it, models write a JSON list of calls in the same place. Reasoning is between
<think> and </think>.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.json_call import read_json_calls
from zinc.chat.formats.python_call import read_call_list
from zinc.chat.output import Output
from zinc.chat.reader import Reader, Steps

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


def _read_calls(reader: Reader, output: Output) -> Steps[None]:
    yield from reader.peek()
    start = reader.position
    yield from reader.expect("[")
    is_json = (yield from reader.peek()) == "{"
    reader.rewind(start)
    yield from (read_json_calls if is_json else read_call_list)(reader, output)
    yield from reader.match_after_space(_CLOSE)


LFM2 = ChatFormat(
    name="lfm2",
    markers=(_OPEN, _CLOSE, THINK.begin, THINK.end),
    thinking=THINK,
    calls={_OPEN: _read_calls},
)
