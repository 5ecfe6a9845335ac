"""Harmony (gpt-oss): an answer is a sequence of messages, each with a channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    <|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>

`analysis` is reasoning and `final` the answer. `commentary` is a call if it has a recipient, else
text for the user. The recipient can also be before the channel. The prompt ends with
<|start|>assistant.
"""

from __future__ import annotations

import re

from zinc.chat.format import ChatFormat, Thinking, read_reasoning_to
from zinc.chat.formats.json_call import read_arguments
from zinc.chat.output import Output
from zinc.chat.reader import MalformedError, Reader, Steps

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN = "<|constrain|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_ROLE = "assistant"
_HEADER = re.compile(
    r"(?:to=(?P<early>[^ <]+) ?)?"
    r"(?:<\|channel\|> ?(?P<channel>analysis|commentary|final) ?(?:to=(?P<late>[^ <]+) ?)?)?"
    r"(?:<\|constrain\|> ?)?[a-z_]*"
)


def _read_message(reader: Reader, output: Output) -> Steps[None]:
    if not (yield from reader.match(_ROLE)):
        raise MalformedError("not the assistant's")
    yield from _read_header_and_body(reader, output, "")


def _read_from_channel(reader: Reader, output: Output) -> Steps[None]:
    yield from _read_header_and_body(reader, output, _CHANNEL)


def _read_first(reader: Reader, output: Output) -> Steps[None]:
    """Read the first message if it begins with a recipient; the prompt contains its start."""
    if not (yield from reader.match_after_space("to=")):
        raise MalformedError("no recipient")
    yield from _read_header_and_body(reader, output, "to=")


def _read_header_and_body(reader: Reader, output: Output, begun: str) -> Steps[None]:
    text, marker = yield from reader.until(_MESSAGE, _START, _END, _CALL, _RETURN)
    header = _HEADER.fullmatch(" ".join((begun + text).split()))
    if marker != _MESSAGE or header is None:
        raise MalformedError(text)
    recipient = header["late"] or header["early"] or ""
    tool = recipient.removeprefix("functions.")
    if tool != recipient or output.knows(tool):
        if output.tools is None:
            raise MalformedError(text)
        yield from read_arguments(reader, output, tool)
        yield from reader.match_after_space(_CALL)
        output.end()
    elif header["channel"] == "analysis":
        yield from read_reasoning_to(_END, _CALL, _RETURN)(reader, output)


def _skip(reader: Reader, output: Output) -> Steps[None]:
    """Skip the marker at the end of a message."""
    yield from ()


HARMONY = ChatFormat(
    name="harmony",
    markers=(_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN),
    thinking=Thinking(
        f"{_CHANNEL}analysis{_MESSAGE}",
        _END,
        resume=f"{_START}{_ROLE}{_CHANNEL}final{_MESSAGE}",
        anywhere=True,
    ),
    channels={
        _START: _read_message,
        _CHANNEL: _read_from_channel,
        **dict.fromkeys((_END, _CALL, _RETURN), _skip),
    },
    beginning=_read_first,
    header=f"{_START}{_ROLE}",
    calls_in_channels=True,
)
