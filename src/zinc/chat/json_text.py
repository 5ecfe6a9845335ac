"""Streaming JSON: check a value character by character, and pass it on.

Line breaks and tabs in strings, which models write and JSON forbids, are escaped. Everything else
is passed on unchanged. Nesting is kept in a list, so deep nesting cannot overflow the stack.
"""

from __future__ import annotations

import json
import re
from typing import Any

from zinc.chat.reader import END, SPACE, Mark, Reader, Sink, Steps

_MAX_DEPTH = 512
_CLOSER = {"{": "}", "[": "]"}
_LITERAL = {"t": "true", "f": "false", "n": "null"}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_IN_NUMBER = frozenset("0123456789+-.eE")
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_MAX_NUMBER_CHARS = 400
_SURROGATE = re.compile("[\ud800-\udfff]")


def quoted(text: str) -> str:
    """Return `text` as a JSON string with quotes."""
    return f'"{escaped(text)}"'


def escaped(text: str) -> str:
    """Return `text` escaped for a JSON string, without quotes. Lone surrogates are escaped too."""
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", plain)


def parsed(text: str) -> Any:
    """Return the value of a JSON text.

    Raises ValueError if it is not valid, for NaN and infinity, and if it is nested too deep.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _no_constant(name: str) -> None:
    raise ValueError(name)


def read_value(reader: Reader, sink: Sink) -> Steps[None]:
    """Read one JSON value and pass its text to `sink`, piece by piece.

    Raises MalformedError at the first wrong character.
    """
    closers: list[str] = []
    expected = "value"
    while True:
        item = yield from reader.read()
        if item in SPACE:
            sink(item)
            continue
        if closers and item == closers[-1] and expected in ("first", "first key", "next"):
            sink(closers.pop())
            expected = "next"
        elif expected in ("key", "first key"):
            yield from _read_string(reader, item, sink)
            expected = "colon"
        elif expected == "colon":
            if item != ":":
                raise reader.fail(item)
            sink(item)
            expected = "value"
        elif expected == "next":
            if item != ",":
                raise reader.fail(item)
            sink(item)
            expected = "key" if closers[-1] == "}" else "value"
        elif item in _CLOSER and len(closers) < _MAX_DEPTH:
            sink(item)
            closers.append(_CLOSER[item])
            expected = "first key" if item == "{" else "first"
        else:
            yield from _read_scalar(reader, item, sink)
            expected = "next"
        if not closers:
            return


def _read_scalar(reader: Reader, item: str, sink: Sink) -> Steps[None]:
    if item == '"':
        yield from _read_string(reader, item, sink)
    elif item in _LITERAL:
        word = _LITERAL[item]
        for char in word[1:]:
            item = yield from reader.read()
            if item != char:
                raise reader.fail(item)
        sink(word)
    else:
        number = ""
        while item in _IN_NUMBER and len(number) < _MAX_NUMBER_CHARS:
            number += item
            item = yield from reader.read()
        if not _NUMBER.fullmatch(number):
            raise reader.fail(item)
        reader.unread(item)
        sink(number)


def _read_string(reader: Reader, item: str, sink: Sink) -> Steps[None]:
    if item != '"':
        raise reader.fail(item)
    sink(item)
    while True:
        item = yield from reader.read()
        if item == END or isinstance(item, Mark):
            raise reader.fail(item)
        if item == "\\":
            yield from _read_escape(reader, sink)
        elif item < " ":
            sink(escaped(item))
        else:
            sink(item)
            if item == '"':
                return


def _read_escape(reader: Reader, sink: Sink) -> Steps[None]:
    escape = yield from reader.read()
    if escape == "u":
        for _ in range(4):
            digit = yield from reader.read()
            if digit not in _HEX:
                raise reader.fail(digit)
            escape += digit
    elif escape not in _ESCAPED:
        raise reader.fail(escape)
    sink("\\" + escape)


def read_string(reader: Reader) -> Steps[str]:
    """Read a JSON string, after optional white space, and return its value.

    Raises MalformedError.
    """
    parts: list[str] = []
    item = yield from reader.next()
    yield from _read_string(reader, item, parts.append)
    text: str = json.loads("".join(parts))
    return _SURROGATE.sub("\ufffd", text)
