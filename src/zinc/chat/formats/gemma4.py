"""Gemma 4: <|tool_call>call:name{key:value,...}<tool_call|>, and reasoning in a channel.

Strings are between two <|"|>. Numbers, true, false, lists and objects are as in JSON, but keys have
no quotes. Reasoning is <|channel>thought, a line break, the text, and <channel|>.
"""

from __future__ import annotations

from zinc.chat.format import ChatFormat, Thinking, read_reasoning_to
from zinc.chat.json_text import escaped, quoted
from zinc.chat.output import Output
from zinc.chat.reader import END, MalformedError, Mark, Reader, Sink, Steps
from zinc.chat.schema import typed

_OPEN, _CLOSE = "<|tool_call>", "<tool_call|>"
_CHANNEL, _CHANNEL_END = "<|channel>", "<channel|>"
_THOUGHT = "thought"
_QUOTE = '<|"|>'
_RESPONSE = "<|tool_response>"
_MAX_DEPTH = 64
_ANY: frozenset[str] = frozenset()


def _read_call(reader: Reader, output: Output) -> Steps[None]:
    if not (yield from reader.match_after_space("call:")):
        raise MalformedError(_OPEN)
    name = (yield from reader.until("{"))[0].strip()
    output.start(name)
    yield from _read_members(reader, output.arguments, 0)
    output.end_arguments()
    yield from reader.match_after_space(_CLOSE)
    output.end()


def _read_members(reader: Reader, sink: Sink, depth: int) -> Steps[None]:
    """Read the members of an object and its closing brace, after the opening brace."""
    separator = "{"
    while (yield from reader.peek()) != "}":
        if (yield from reader.match(_QUOTE)):
            key = (yield from reader.until(_QUOTE))[0]
            yield from reader.expect(":")
        else:
            key = (yield from _read_bare(reader, ":")).strip().strip('"')
            yield from reader.expect(":")
        sink(f"{separator}{quoted(key)}: ")
        separator = ", "
        yield from _read_value(reader, sink, depth + 1)
        if (yield from reader.peek()) != "}":
            yield from reader.expect(",")
    yield from reader.expect("}")
    sink("{}" if separator == "{" else "}")


def _read_value(reader: Reader, sink: Sink, depth: int) -> Steps[None]:
    item = yield from reader.peek()
    if depth == _MAX_DEPTH:
        raise MalformedError("nested too deep")
    if (yield from reader.match(_QUOTE)):
        sink('"')
        end = reader.markers([_QUOTE])
        if (yield from reader.scan(end, lambda text: sink(escaped(text)))) == END:
            raise MalformedError("cut off")
        sink('"')
    elif item == "{":
        yield from reader.expect("{")
        yield from _read_members(reader, sink, depth)
    elif item == "[":
        yield from reader.expect("[")
        sink("[")
        separator = ""
        while (yield from reader.peek()) != "]":
            sink(separator)
            separator = ", "
            yield from _read_value(reader, sink, depth + 1)
            if (yield from reader.peek()) != "]":
                yield from reader.expect(",")
        yield from reader.expect("]")
        sink("]")
    else:
        sink(typed((yield from _read_bare(reader, ",}]")).strip(), _ANY))


def _read_bare(reader: Reader, stops: str) -> Steps[str]:
    """Return the text before one of the characters in `stops`, which is not read."""
    text = ""
    while True:
        item = yield from reader.read()
        if item == END or isinstance(item, Mark):
            raise reader.fail(item)
        if item in stops:
            if not text.strip():
                raise reader.fail(item)
            reader.unread(item)
            return text
        text += item


def _read_channel(reader: Reader, output: Output) -> Steps[None]:
    name, end = yield from reader.until("\n", _CHANNEL_END)
    if name.strip() != _THOUGHT:
        raise MalformedError(name)
    if end == "\n":
        yield from read_reasoning_to(_CHANNEL_END)(reader, output)


def _skip(reader: Reader, output: Output) -> Steps[None]:
    """Skip a marker without meaning: the end of an answer, or of a channel that did not begin."""
    yield from ()


GEMMA4 = ChatFormat(
    name="gemma4",
    markers=(_OPEN, _CLOSE, _CHANNEL, _CHANNEL_END, _QUOTE, _RESPONSE),
    thinking=Thinking(f"{_CHANNEL}{_THOUGHT}\n", _CHANNEL_END, resume="", anywhere=True),
    calls={_OPEN: _read_call},
    channels={_CHANNEL: _read_channel, _RESPONSE: _skip},
)
