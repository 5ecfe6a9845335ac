"""Command R and R+: the word "Action:", and a JSON list of calls in a code fence.

    Action:
    ```json
    [
        {
            "tool_name": "name",
            "parameters": {...}
        }
    ]```

There are no control tokens for calls, so the name must be that of a tool. The prompt asks for a
call of `directly-answer` where no tool is needed. Such a list is text, unless the request has a
tool of that name.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat
from zinc.chat.formats.json_call import read_json_calls
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_OPEN, _FENCE, _FENCE_END = "Action:", "```json", "```"


def _read_calls(reader: Reader, output: Output) -> Steps[None]:
    if not (yield from reader.match_after_space(_FENCE)):
        raise MalformedError("no code fence")
    yield from read_json_calls(reader, output, known=True)
    yield from reader.match_after_space(_FENCE_END)


COMMAND_R = ChatFormat(
    name="command-r",
    markers=(_OPEN,),
    calls={_OPEN: _read_calls},
)
