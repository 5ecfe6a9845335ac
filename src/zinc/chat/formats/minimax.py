"""MiniMax M2: a block of calls, each an <invoke> tag with parameter tags.

    <minimax:tool_call>
    <invoke name="name">
    <parameter name="key">value</parameter>
    </invoke>
    </minimax:tool_call>

Strings are written as plain text and other values as JSON. The tool's schema decides if a value can
be either.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.tagged import Arguments
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE, _INVOKE_END = '<invoke name="', "</invoke>"
_PARAMETER, _PARAMETER_END = '<parameter name="', "</parameter>"
_NAME_END = '">'


def _read_block(reader: Reader, output: Output) -> Steps[None]:
    if not (yield from reader.match_after_space(_INVOKE)):
        raise MalformedError("no call in the block")
    while True:
        yield from _read_call(reader, output)
        if not (yield from reader.match_after_space(_INVOKE)):
            break
    yield from reader.match_after_space(_CLOSE)


def _read_call(reader: Reader, output: Output) -> Steps[None]:
    name = (yield from reader.until(_NAME_END))[0].strip()
    output.start(name)
    arguments = Arguments(output, name)
    while (yield from reader.match_after_space(_PARAMETER)):
        key = (yield from reader.until(_NAME_END))[0].strip()
        yield from arguments.read(reader, key, _PARAMETER_END, (_PARAMETER, _INVOKE_END))
    if not (yield from reader.match_after_space(_INVOKE_END)):
        raise MalformedError(name)
    arguments.close()
    output.end()


MINIMAX = ChatFormat(
    name="minimax",
    markers=(_OPEN, _CLOSE, THINK.begin, THINK.end),
    thinking=THINK,
    calls={_OPEN: _read_block},
)
