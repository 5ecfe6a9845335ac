"""DeepSeek V3, R1 and V3.1: calls are in a block, with control tokens around each.

V3 and R1 write `function`, a separator, the name, and the arguments in a ```json fence. V3.1 writes
the name, the separator and the arguments. Reasoning is between <think> and </think>.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zinc.chat.format import CallText, ChatFormat
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.json_call import read_arguments
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_BLOCK, _BLOCK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_OPEN, _CLOSE, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE, _FENCE_END = "```json", "```"


def _read_block(reader: Reader, output: Output) -> Steps[None]:
    if not (yield from reader.match_after_space(_OPEN)):
        raise MalformedError("no call in the block")
    yield from _read_calls(reader, output)


def _read_calls(reader: Reader, output: Output) -> Steps[None]:
    while True:
        yield from _read_call(reader, output)
        if not (yield from reader.match_after_space(_OPEN)):
            break
    yield from reader.match_after_space(_BLOCK_END)


def _read_call(reader: Reader, output: Output) -> Steps[None]:
    name = (yield from reader.until(_SEPARATOR))[0].strip()
    fenced = (yield from reader.peek()) != "{"
    if fenced:
        name = (yield from reader.until("\n"))[0].strip()
        if not (yield from reader.match_after_space(_FENCE)):
            raise MalformedError(name)
    yield from read_arguments(reader, output, name)
    if fenced:
        yield from reader.match_after_space(_FENCE_END)
    yield from reader.match_after_space(_CLOSE)
    output.end()


def _write_call(name: str, arguments: Mapping[str, Any] | str) -> str:
    call = f"function{_SEPARATOR}{name}\n{_FENCE}\n{_json(arguments)}\n{_FENCE_END}"
    return f"{_BLOCK}{_OPEN}{call}{_CLOSE}{_BLOCK_END}"


def _write_plain_call(name: str, arguments: Mapping[str, Any] | str) -> str:
    return f"{_BLOCK}{_OPEN}{name}{_SEPARATOR}{_json(arguments)}{_CLOSE}{_BLOCK_END}"


def _json(arguments: Mapping[str, Any] | str) -> str:
    is_text = isinstance(arguments, str)
    return str(arguments) if is_text else json.dumps(arguments, ensure_ascii=False)


_RESULT = "<tool_response>\n", "\n</tool_response>"
DEEPSEEK = ChatFormat(
    name="deepseek",
    markers=(_BLOCK, _BLOCK_END, _OPEN, _CLOSE, _SEPARATOR, THINK.begin, THINK.end),
    thinking=THINK,
    calls={_BLOCK: _read_block, _OPEN: _read_calls},
    text=CallText(_write_call, _RESULT),
)

DEEPSEEK_V31 = replace(DEEPSEEK, name="deepseek-v3.1", text=CallText(_write_plain_call, _RESULT))
