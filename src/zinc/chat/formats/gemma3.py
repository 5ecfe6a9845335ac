"""Gemma 3: calls are Python in a code fence, or at the beginning of the answer.

    ```tool_code
    print(get_weather(city="Oslo"))
    ```

There are no control tokens for calls. Google's guide asks for a list of calls, [f(a=1), g(b=2)], or
a JSON object; its examples use the fence. Since answers can contain code and JSON too, the name
must be that of a tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zinc.chat.format import CallText, ChatFormat
from zinc.chat.formats.json_call import read_json_call
from zinc.chat.formats.python_call import read_call_list, read_name, read_python_call
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_FENCE, _FENCE_END = "```tool_code", "```"
_WRAPPER = "print"
_NAMESPACES = ("default_api.", "functions.")


def _read_fence(reader: Reader, output: Output) -> Steps[None]:
    if (yield from reader.peek()) == "[":
        yield from read_call_list(reader, output)
    else:
        yield from _read_statement(reader, output)
    while not (yield from reader.match_after_space(_FENCE_END)):
        yield from _read_statement(reader, output)


def _read_statement(reader: Reader, output: Output) -> Steps[None]:
    name = yield from read_name(reader)
    wrapped = name == _WRAPPER and not output.knows(name)
    if wrapped:
        name = yield from read_name(reader)
    for namespace in _NAMESPACES:
        name = name.removeprefix(namespace)
    if not output.knows(name):
        raise MalformedError(name)
    yield from read_python_call(reader, output, name)
    if wrapped:
        yield from reader.expect(")")
    output.end()


def _read_bare_call(reader: Reader, output: Output) -> Steps[None]:
    """Read a list of Python calls, or a call as a JSON object."""
    if (yield from reader.peek()) == "[":
        yield from read_call_list(reader, output)
    else:
        yield from read_json_call(reader, output, known=True)
        output.end()


def _write_call(name: str, arguments: Mapping[str, Any] | str) -> str:
    if not isinstance(arguments, str):
        arguments = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{_FENCE}\n{name}({arguments})\n{_FENCE_END}"


GEMMA3 = ChatFormat(
    name="gemma3",
    markers=(_FENCE,),
    calls={_FENCE: _read_fence},
    bare_call=_read_bare_call,
    text=CallText(_write_call, ("```tool_output\n", "\n```")),
)
