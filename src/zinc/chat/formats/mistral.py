"""Mistral: [TOOL_CALLS] before a JSON list of calls, or before each call as name[ARGS]{...}.

The list is the older form (7B v0.3, Nemo, Small 3.1), names with [ARGS] the newer one. Some models
write [CALL_ID] and an id between name and [ARGS]. Reasoning is between [THINK] and [/THINK]. The
templates accept only ids of nine letters and digits.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat, Thinking, random_id
from zinc.chat.formats.json_call import read_arguments, read_json_calls
from zinc.chat.output import Output
from zinc.chat.reader import Reader, Steps

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_THINK = Thinking("[THINK]", "[/THINK]", resume="")
N_ID_CHARS = 9


def _read_calls(reader: Reader, output: Output) -> Steps[None]:
    if (yield from reader.peek()) == "[":
        yield from read_json_calls(reader, output)
        return
    name, marker = yield from reader.until(_ID, _ARGUMENTS, "{")
    id: str | None = None
    if marker == _ID:
        id, marker = yield from reader.until(_ARGUMENTS, "{")
    if marker == "{":
        reader.unread("{")
    yield from read_arguments(reader, output, name.strip(), id and id.strip())
    output.end()


MISTRAL = ChatFormat(
    name="mistral",
    markers=(_CALLS, _ID, _ARGUMENTS, _THINK.begin, _THINK.end),
    thinking=_THINK,
    calls={_CALLS: _read_calls},
    new_id=lambda: random_id(N_ID_CHARS, prefix=""),
)
