"""Calls written as JSON objects: {"name": "...", "arguments": {...}}, and what varies about them.

Llama says `parameters`; some models put the arguments first, add keys, or write the arguments as a
string that holds JSON. All of it is one reader, since models trained on one form produce others.
"""

from __future__ import annotations

from zinc.chat.json_text import parsed, read_string, read_value
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_ARGUMENTS = ("arguments", "parameters")
_BEFORE_NAME = (*_ARGUMENTS, "type", "id")


def read_json_call(reader: Reader, output: Output, known: bool = False) -> Steps[None]:
    """Starts a call and passes on its arguments; the caller ends it.

    With `known`, for places where any JSON may stand, it must be a tool of the request. Raises
    MalformedError.
    """
    yield from reader.expect("{")
    name: str | None = None
    early: str | None = None
    while True:
        key = yield from read_string(reader)
        yield from reader.expect(":")
        if key == "name" and name is None:
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


def read_json_calls(reader: Reader, output: Output) -> Steps[None]:
    """Reads a list of such objects, and ends their calls."""
    yield from reader.expect("[")
    while True:
        yield from read_json_call(reader, output)
        ended = yield from reader.match_after_space("]")
        output.end()
        if ended:
            return
        yield from reader.expect(",")


def read_arguments(reader: Reader, output: Output, name: str, id: str | None = None) -> Steps[None]:
    """Starts the call of `name`, whose arguments are the JSON value that comes next."""
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
    """A key that calls do not have; it stays in the source of the call."""
