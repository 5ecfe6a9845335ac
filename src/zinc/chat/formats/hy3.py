"""Hy3: a block of calls, each with a name and pairs of key and value, as in GLM.

<tool_calls:opensource>
<tool_call:opensource>name<tool_sep:opensource>
<arg_key:opensource>key</arg_key:opensource>
<arg_value:opensource>value</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat, Thinking
from zinc.chat.formats.glm import PairTags
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_SUFFIX = ":opensource"
_OPEN, _CLOSE = f"<tool_calls{_SUFFIX}>", f"</tool_calls{_SUFFIX}>"
TAGS = PairTags(_SUFFIX, f"<tool_sep{_SUFFIX}>")
_THINK = Thinking(f"<think{_SUFFIX}>", f"</think{_SUFFIX}>", resume="")


def _read_block(reader: Reader, output: Output) -> Steps[None]:
    if not (yield from reader.match_after_space(TAGS.all[0])):
        raise MalformedError("no call in the block")
    while True:
        yield from TAGS.read(reader, output)
        if not (yield from reader.match_after_space(TAGS.all[0])):
            break
    yield from reader.match_after_space(_CLOSE)


HY3 = ChatFormat(
    name="hy3",
    markers=(_OPEN, _CLOSE, *TAGS.all, TAGS.name_end, _THINK.begin, _THINK.end),
    thinking=_THINK,
    calls={_OPEN: _read_block},
)
