"""Readers of calls that are JSON objects: {"name": "...", "arguments": {...}}, with variations.

Llama writes `parameters`, and Command `tool_name`. Some models write the arguments first, add keys,
or write the arguments as a string of JSON. One reader accepts all of these, since models also mix
the forms.
"""

from __future__ import annotations

from zinc.chat.json_text import parsed, read_string, read_value
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "tool_name")
_BEFORE_NAME = (*_ARGUMENTS, "type", "id", "tool_call_id")


def read_json_call(reader: Reader, output: Output, known: bool = False) -> Steps[None]:
    """Read a call as a JSON object. The caller ends the call in `output`.

    known: the name must be that of a tool of the request, because other JSON can be in this place.
    Raises MalformedError.
    """
    yield from reader.expect("{")
    name: str | None = None
    early: str | None = None
    while True:
        key = yield from read_string(reader)
        yield from reader.expect(":")
        if key in _NAMES and name is None:
            name = yield from read_string(reader)
            if known and not output.knows(name):
                raise MalformedError(name)
            if early is not None:
                _whole(output, name, early)
        elif key in _ARGUMENTS and not output.is_open and early is None:
            if name is not None:
                yield from read_arguments(reader, output, name)
            else:
                early = yield from _buffered_arguments(reader)
        elif name is None and key not in _BEFORE_NAME:
            raise MalformedError(key)
        else:
            yield from reader.peek()
            yield from read_value(reader, _ignore)
        item = yield from reader.next()
        if item == "}" and name is not None:
            break
        if item != ",":
            raise reader.fail(item)
    if not output.is_open:
        _whole(output, name, "{}")


def read_json_calls(reader: Reader, output: Output, known: bool = False) -> Steps[None]:
    """Read a list of calls as JSON objects, and end each call.

    known: the names must be those of tools of the request. Raises MalformedError.
    """
    yield from reader.expect("[")
    while True:
        yield from read_json_call(reader, output, known)
        ended = yield from reader.match_after_space("]")
        output.end()
        if ended:
            return
        yield from reader.expect(",")


def read_arguments(reader: Reader, output: Output, name: str, id: str | None = None) -> Steps[None]:
    """Start a call of the tool `name`, and read its arguments: the next JSON value."""
    if (yield from reader.peek()) == "{":
        output.start(name, id)
        yield from read_value(reader, output.arguments)
        output.end_arguments()
    else:
        _whole(output, name, (yield from _buffered_arguments(reader)), id)


def _whole(output: Output, name: str, arguments: str, id: str | None = None) -> None:
    output.start(name, id)
    output.arguments(arguments)
    output.end_arguments()


def _buffered_arguments(reader: Reader) -> Steps[str]:
    item = yield from reader.peek()
    if item == '"':
        text = yield from read_string(reader)
        try:
            is_object = isinstance(parsed(text), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise MalformedError(text)
        return text
    parts: list[str] = []
    yield from read_value(reader, parts.append)
    if item == "n":
        return "{}"
    if item != "{":
        raise MalformedError(item)
    return "".join(parts)


def _ignore(text: str) -> None:
    """Drop the value of an unknown key. It stays in the source of the call."""
