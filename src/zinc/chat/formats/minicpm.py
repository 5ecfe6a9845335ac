"""MiniCPM 5: <function name="name"><param name="key">value</param></function>.

Strings are written as plain text and other values as JSON. A string with <, & or line breaks is
between <![CDATA[ and ]]>.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.hermes import THINK
from zinc.chat.formats.tagged import Arguments
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_OPEN, _CLOSE = '<function name="', "</function>"
_PARAMETER, _PARAMETER_END = '<param name="', "</param>"
_RAW, _RAW_END = "<![CDATA[", "]]>"
_NAME_END = '">'


def _read_call(reader: Reader, output: Output) -> Steps[None]:
    name = (yield from reader.until(_NAME_END))[0].strip()
    if not output.knows(name):
        raise MalformedError(name)
    output.start(name)
    arguments = Arguments(output, name)
    while (yield from reader.match_after_space(_PARAMETER)):
        key = (yield from reader.until(_NAME_END))[0].strip()
        is_raw = yield from reader.match(_RAW)
        end = (_RAW_END if is_raw else "") + _PARAMETER_END
        yield from arguments.read(reader, key, end, (_PARAMETER, _CLOSE))
    if not (yield from reader.match_after_space(_CLOSE)):
        raise MalformedError(name)
    arguments.close()
    output.end()


MINICPM = ChatFormat(
    name="minicpm",
    markers=(_OPEN, _CLOSE, THINK.begin, THINK.end),
    thinking=THINK,
    calls={_OPEN: _read_call},
)
