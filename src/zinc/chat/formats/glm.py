"""GLM 4.5 and later: calls have a name and pairs of key and value, inside <tool_call>.

    <tool_call>name
    <arg_key>key</arg_key>
    <arg_value>value</arg_value>
    </tool_call>

Strings are written as plain text and other values as JSON. The tool's schema decides if a value can
be either.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.tagged import Arguments
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


def _read_call(reader: Reader, output: Output) -> Steps[None]:
    name, marker = yield from reader.until(_KEY, _CLOSE)
    name = name.strip()
    if marker == _CLOSE and not output.knows(name):
        raise MalformedError(name)
    output.start(name)
    arguments = Arguments(output, name)
    while marker == _KEY:
        key = (yield from reader.until(_KEY_END))[0].strip()
        if not (yield from reader.match_after_space(_VALUE)):
            raise MalformedError(key)
        yield from arguments.read(reader, key, _VALUE_END, (_KEY, _CLOSE))
        marker = ""
        for next in (_KEY, _CLOSE):
            if (yield from reader.match_after_space(next)):
                marker = next
                break
    if marker != _CLOSE:
        raise MalformedError(name)
    arguments.close()
    output.end()


GLM = ChatFormat(
    name="glm",
    markers=(_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END, THINK.begin, THINK.end),
    thinking=THINK,
    calls={_OPEN: _read_call},
    syntax=f"{_OPEN}<name>\n{_KEY}<key>{_KEY_END}\n{_VALUE}<value>{_VALUE_END}\n{_CLOSE}",
)
