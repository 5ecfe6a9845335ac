"""Qwen 3 Coder and Qwen 3.5: calls are a function tag inside <tool_call>, with parameter tags.

    <tool_call>
    <function=name>
    <parameter=key>
    value
    </parameter>
    </function>
    </tool_call>

Values are raw text, so their types come from the tool's schema. Models sometimes omit the outer
tag; then the name must be that of a tool. Seed-OSS has other tags around calls and reasoning, and
writes values without line breaks around them.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat, Thinking
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.json_call import read_json_call
from zinc.chat.formats.tagged import Arguments
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _format(name: str, open: str, close: str, thinking: Thinking, lines: bool) -> ChatFormat:
    """Return a format with the tags `open` and `close` around a call.

    lines: values have a line break before and after them.
    """

    def read_call(reader: Reader, output: Output) -> Steps[None]:
        if (yield from reader.match_after_space(_FUNCTION)):
            yield from read_function(reader, output, known=False)
        else:
            yield from read_json_call(reader, output)
        yield from reader.match_after_space(close)
        output.end()

    def read_bare_function(reader: Reader, output: Output) -> Steps[None]:
        yield from read_function(reader, output, known=True)
        yield from reader.match_after_space(close)
        output.end()

    def read_function(reader: Reader, output: Output, known: bool) -> Steps[None]:
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
            after = (_PARAMETER, _FUNCTION_END, close)
            yield from arguments.read(reader, key, _PARAMETER_END, after, lines)
        for tag in (_FUNCTION_END, close):
            if (yield from reader.match_after_space(tag)):
                arguments.close()
                return
        raise MalformedError(name)

    return ChatFormat(
        name=name,
        markers=(
            *(open, close, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END),
            *(thinking.begin, thinking.end),
        ),
        thinking=thinking,
        calls={open: read_call, _FUNCTION: read_bare_function},
    )


QWEN_TAGS = _format("qwen-tags", "<tool_call>", "</tool_call>", THINK, lines=True)
SEED = _format(
    "seed",
    "<seed:tool_call>",
    "</seed:tool_call>",
    Thinking("<seed:think>", "</seed:think>"),
    lines=False,
)
