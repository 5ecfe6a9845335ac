"""Chat formats: how a family of models writes reasoning and tool calls, and how that is parsed.

In every format an answer is optional reasoning, then text in which markers open calls (or channels,
in some formats). A format is therefore a record of markers, with one generator per marker that
reads the text after it. `read_answer` is the loop around these generators. It treats text that does
not follow the format as plain text.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeAlias

from zinc.chat.output import HEAD_LIMIT, Output
from zinc.chat.reader import END, MalformedError, Reader, Steps
from zinc.core.dataclass import dataclass

Part: TypeAlias = Callable[[Reader, Output], Steps[None]]

_ALPHANUMERIC = string.ascii_letters + string.digits


def random_id(n_chars: int = 24, prefix: str = "call_") -> str:
    """Return a random id for a call."""
    return prefix + "".join(secrets.choice(_ALPHANUMERIC) for _ in range(n_chars))


@dataclass(frozen=True)
class Thinking:
    """The markers around reasoning.

    resume: the text between the end marker and the answer. anywhere: reasoning can be anywhere in
    an answer, and the generators of the format read it; otherwise it can only be at the beginning,
    and later markers are text.
    """

    begin: str
    end: str
    resume: str = "\n\n"
    anywhere: bool = False


@dataclass(frozen=True)
class CallText:
    """How calls and their results are written in the text of messages.

    A chat template without tools has no other place for them (`zinc.chat.tool_text`).

    call: returns a call as text, given the tool's name and the arguments, an object or, if the
    model wrote invalid JSON, its text. result: the text before and after the result of a call.
    """

    call: Callable[[str, Mapping[str, Any] | str], str]
    result: tuple[str, str]


@dataclass(frozen=True)
class ChatFormat:
    """The chat format of a family of models.

    markers: all markers. A marker that is a control token of a model's vocabulary is recognised
        only as that token, not as text.
    calls, channels: by marker, the generator that reads the text after it. `calls` are used only
        if the request has tools.
    bare_call: reads a call without a marker, which can only be at the beginning of an answer.
    beginning: reads other text that can only be at the beginning of an answer.
    header: the beginning of the model's turn, in formats whose prompt ends within it.
    calls_in_channels: the generators in `channels` also read calls.
    new_id: returns an id for a call.
    text: how calls are written for templates without tools; None if zinc does not write them.
    """

    name: str
    markers: tuple[str, ...] = ()
    thinking: Thinking | None = None
    calls: Mapping[str, Part] = field(default_factory=dict)
    channels: Mapping[str, Part] = field(default_factory=dict)
    bare_call: Part | None = None
    beginning: Part | None = None
    header: str | None = None
    calls_in_channels: bool = False
    new_id: Callable[[], str] = random_id
    text: CallText | None = None

    @property
    def has_calls(self) -> bool:
        """Whether zinc can parse tool calls of this format."""
        return bool(self.calls) or self.calls_in_channels

    def opened(self, prompt: str) -> str:
        """Return the beginning of the answer that is already in `prompt`: "<think>" or often ""."""
        if self.header is not None:
            begun = prompt[prompt.rfind(self.header) + len(self.header) :]
            return begun if self.header in prompt else ""
        if self.thinking is not None and prompt.rstrip().endswith(self.thinking.begin.rstrip()):
            return self.thinking.begin
        return ""

    def read_answer(self, reader: Reader, output: Output) -> Steps[None]:
        """Read a whole answer, up to END."""
        if self.thinking is not None and not self.thinking.anywhere:
            yield from _read_reasoning(reader, output, self.thinking)
        parts = dict(self.channels)
        if output.tools is not None:
            parts |= self.calls
        for part in (self.beginning, self.bare_call if output.tools is not None else None):
            if part is not None:
                yield from _attempt(part, reader, output)
        markers = reader.markers(parts)
        while True:
            marker = yield from reader.scan(markers, output.content, remember=False)
            if marker == END:
                return
            if not (yield from _attempt(parts[marker], reader, output)):
                # Skip one character, so that the same marker is not found again.
                first = yield from reader.read()
                output.content(str(first))


def _attempt(part: Part, reader: Reader, output: Output) -> Steps[bool]:
    """Run the generator `part`. Return False, with nothing read, if the text does not fit it."""
    reader.limit = HEAD_LIMIT
    try:
        yield from part(reader, output)
    except MalformedError:
        if output.is_open:
            output.end()
        elif reader.position:
            reader.rewind()
            return False
    finally:
        reader.limit = None
    reader.commit()
    return True


def _read_reasoning(reader: Reader, output: Output, thinking: Thinking) -> Steps[None]:
    if not (yield from reader.match_after_space(thinking.begin)):
        return
    yield from read_reasoning_to(thinking.end)(reader, output)


def read_reasoning_to(*ends: str) -> Part:
    """Return a generator that reads reasoning up to and including one of the markers `ends`."""

    def read(reader: Reader, output: Output) -> Steps[None]:
        reader.limit = None
        output.open_reasoning()
        end = yield from reader.scan(reader.markers(ends), output.reasoning, remember=False)
        if end != END:
            output.close_reasoning()
        reader.commit()

    return read
