"""Qwen 3 Coder and Qwen 3.5: calls are a function tag inside <tool_call>, with parameter tags.

    <tool_call>
    <function=name>
    <parameter=key>
    value
    </parameter>
    </function>
    </tool_call>

Values are raw text, so their types come from the tool's schema. Models sometimes omit the outer
tag; then the name must be that of a tool.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.json_call import read_json_call
from zinc.chat.formats.tagged import Arguments
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _read_call(reader: Reader, output: Output) -> Steps[None]:
    if (yield from reader.match_after_space(_FUNCTION)):
        yield from _read_function(reader, output, known=False)
    else:
        yield from read_json_call(reader, output)
    yield from reader.match_after_space(_CLOSE)
    output.end()


def _read_bare_function(reader: Reader, output: Output) -> Steps[None]:
    yield from _read_function(reader, output, known=True)
    yield from reader.match_after_space(_CLOSE)
    output.end()


def _read_function(reader: Reader, output: Output, known: bool) -> Steps[None]:
    name = (yield from reader.until(">"))[0].strip()
    if known and not output.knows(name):
        raise MalformedError(name)
    item = yield from reader.peek()
    if not item.startswith("<"):
        raise reader.fail(item)
    output.start(name)
    arguments = Arguments(output, name)
    while (yield from reader.match_after_space(_PARAMETER)):
        key = (yield from reader.until(">"))[0].strip()
        after = (_PARAMETER, _FUNCTION_END, _CLOSE)
        yield from arguments.read(reader, key, _PARAMETER_END, after, lines=True)
    for tag in (_FUNCTION_END, _CLOSE):
        if (yield from reader.match_after_space(tag)):
            arguments.close()
            return
    raise MalformedError(name)


QWEN_TAGS = ChatFormat(
    name="qwen-tags",
    markers=(
        *(_OPEN, _CLOSE, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END),
        *(THINK.begin, THINK.end),
    ),
    thinking=THINK,
    calls={_OPEN: _read_call, _FUNCTION: _read_bare_function},
    syntax=f"{_OPEN}\n{_FUNCTION}<name>>\n{_PARAMETER}<key>>\n<value>\n{_PARAMETER_END}\n"
    f"{_FUNCTION_END}\n{_CLOSE}",
)
