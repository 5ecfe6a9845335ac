"""Readers of calls in Python syntax: name(key="text", n=3). Literals are converted to JSON.

Nothing is evaluated. Strings, numbers, True, False, None, lists, tuples and dictionaries are
supported; anything else is malformed.
"""

from __future__ import annotations

from zinc.chat.json_text import escaped, parsed, quoted
from zinc.chat.output import Output
from zinc.chat.reader import END, MalformedError, Mark, Reader, Sink, Steps

_CONSTANTS = {"True": "true", "False": "false", "None": "null"} | {
    word: word for word in ("true", "false", "null")
}
_SIMPLE_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_CODE_ESCAPES = {"x": 2, "u": 4, "U": 8}
_MAX_DEPTH = 64
_MAX_WORD_CHARS = 400


def read_word(reader: Reader, also: str = "") -> Steps[str]:
    """Read and return the next letters, digits, underscores and characters in `also`."""
    word = ""
    while True:
        item = yield from reader.read()
        if isinstance(item, Mark) or not (item.isalnum() or (item and item in "_" + also)):
            reader.unread(item)
            return word
        if len(word) == _MAX_WORD_CHARS:
            raise reader.fail(item)
        word += item


def read_name(reader: Reader) -> Steps[str]:
    """Read a function name and the opening parenthesis, and return the name."""
    yield from reader.peek()
    name = yield from read_word(reader, also=".-")
    yield from reader.expect("(")
    return name


def read_python_call(reader: Reader, output: Output, name: str) -> Steps[None]:
    """Start a call of the tool `name`, and read its arguments up to the closing parenthesis.

    Positional arguments get their names from the tool's schema. The caller ends the call. Raises
    MalformedError.
    """
    item = yield from reader.peek()
    if not (item.isalnum() or item in frozenset(")_'\"[{(-+.")):
        raise reader.fail(item)
    output.start(name)
    positional = iter(output.tools.parameters(name) if output.tools is not None else [])
    separator = "{"
    while (yield from reader.peek()) != ")":
        key = yield from _read_key(reader)
        if key is None:
            key = next(positional, None)
        if key is None:
            raise MalformedError("an argument without a name")
        output.arguments(f"{separator}{quoted(key)}: ")
        yield from read_literal(reader, output.arguments)
        separator = ", "
        if (yield from reader.peek()) != ")":
            yield from reader.expect(",")
    yield from reader.expect(")")
    output.arguments("{}" if separator == "{" else "}")
    output.end_arguments()


def _read_key(reader: Reader) -> Steps[str | None]:
    yield from reader.peek()
    start = reader.position
    key = yield from read_word(reader)
    if key.isidentifier() and (yield from reader.next()) == "=":
        return key
    reader.rewind(start)
    return None


def read_literal(reader: Reader, sink: Sink, depth: int = 0) -> Steps[None]:
    """Read one Python literal, and pass it to `sink` as JSON."""
    item = yield from reader.next()
    if depth == _MAX_DEPTH:
        raise reader.fail(item)
    if item in ("'", '"'):
        sink('"')
        yield from _read_string(reader, item, sink)
        sink('"')
    elif item in ("[", "("):
        yield from _read_list(reader, "]" if item == "[" else ")", sink, depth)
    elif item == "{":
        yield from _read_dict(reader, sink, depth)
    else:
        reader.unread(item)
        word = yield from read_word(reader, also="+-.")
        sink(_constant(word))


def _constant(word: str) -> str:
    """Return a Python constant or number as JSON. Raises MalformedError."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    try:
        parsed(word)
    except ValueError:
        word = _other_notation(word)
    try:
        parsed(word)
    except ValueError:
        raise MalformedError(word) from None  # inf, nan
    return word


def _other_notation(word: str) -> str:
    """Return a number in a notation that JSON does not have (0x10, 1_000, .5) as JSON."""
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        return str(float(word))
    except ValueError:
        raise MalformedError(word) from None


def _read_string(reader: Reader, quote: str, sink: Sink) -> Steps[None]:
    long = yield from reader.match(quote * 2)
    if not long and (yield from reader.match(quote)):
        return
    while True:
        item = yield from reader.read()
        if item == END or isinstance(item, Mark) or (item == "\n" and not long):
            raise reader.fail(item)
        if item == "\\":
            sink(escaped((yield from _read_escape(reader))))
        elif item == quote and (not long or (yield from reader.match(quote * 2))):
            return
        else:
            sink(escaped(item))


def _read_escape(reader: Reader) -> Steps[str]:
    item = yield from reader.read()
    if item == END or isinstance(item, Mark):
        raise reader.fail(item)
    if item in _SIMPLE_ESCAPES:
        return _SIMPLE_ESCAPES[item]
    if item not in _CODE_ESCAPES:
        return "\\" + item
    digits = ""
    for _ in range(_CODE_ESCAPES[item]):
        digits += yield from reader.read()
    try:
        return chr(int(digits, 16))
    except (ValueError, OverflowError):
        raise MalformedError(digits) from None


def _read_list(reader: Reader, closer: str, sink: Sink, depth: int) -> Steps[None]:
    sink("[")
    separator = ""
    while (yield from reader.peek()) != closer:
        sink(separator)
        separator = ", "
        yield from read_literal(reader, sink, depth + 1)
        if (yield from reader.peek()) != closer:
            yield from reader.expect(",")
    yield from reader.expect(closer)
    sink("]")


def _read_dict(reader: Reader, sink: Sink, depth: int) -> Steps[None]:
    sink("{")
    separator = ""
    while (yield from reader.peek()) != "}":
        sink(separator)
        separator = ", "
        key: list[str] = []
        yield from read_literal(reader, key.append, depth + 1)
        text = "".join(key)
        sink(text if text.startswith('"') else quoted(text))
        yield from reader.expect(":")
        sink(": ")
        yield from read_literal(reader, sink, depth + 1)
        if (yield from reader.peek()) != "}":
            yield from reader.expect(",")
    yield from reader.expect("}")
    sink("}")


def read_call_list(reader: Reader, output: Output) -> Steps[None]:
    """Read a list of calls such as [f(a=1), g(b=2)]. The names must be those of tools."""
    yield from reader.expect("[")
    while True:
        name = yield from read_name(reader)
        if not output.knows(name):
            raise MalformedError(name)
        yield from read_python_call(reader, output, name)
        if (yield from reader.match_after_space("]")):
            output.end()
            return
        output.end()
        yield from reader.expect(",")
