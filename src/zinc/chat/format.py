"""What a chat format is: its markers, and the grammar of an answer.

All formats share one shape: perhaps reasoning, then text in which markers open calls (or, in some,
channels). So a format is data plus one generator a marker; `read_answer` is the loop around them
and the only place that recovers from text which is not in the format.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from zinc.chat.output import HEAD_LIMIT, Output
from zinc.chat.reader import END, MalformedError, Reader, Steps

Part: TypeAlias = Callable[[Reader, Output], Steps[None]]

_ALPHANUMERIC = string.ascii_letters + string.digits


def random_id(n_chars: int = 24, prefix: str = "call_") -> str:
    """An id for a call, unlike any other in a conversation."""
    return prefix + "".join(secrets.choice(_ALPHANUMERIC) for _ in range(n_chars))


@dataclass(frozen=True)
class Thinking:
    """Markers around reasoning. `resume` is what a model writes next to go on to its answer.

    With `anywhere` the reasoning is a channel that the format's parts read; otherwise it counts
    only at the very beginning, since later the same characters are the answer's.
    """

    begin: str
    end: str
    resume: str = "\n\n"
    anywhere: bool = False


@dataclass(frozen=True)
class ChatFormat:
    """How a family of models writes reasoning and calls.

    `calls` and `channels` map a marker to the generator that reads what follows it; `calls` are
    ignored when the request has no tools. `bare_call` reads a call without a marker, which only the
    beginning of an answer can be; `beginning` reads anything else that only it can be.
    `markers` lists all markers: those that are control tokens in a vocabulary count only as such.
    `header` is how the model's turn begins, where the prompt ends inside of it. With
    `calls_in_channels` the parts in `channels` read calls too. `syntax` shows a call, to tell a
    model whose template does not.
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
    syntax: str = ""
    new_id: Callable[[], str] = random_id

    @property
    def has_calls(self) -> bool:
        """Whether calls of tools can be told from text."""
        return bool(self.calls) or self.calls_in_channels

    def opened(self, prompt: str) -> str:
        """The part of the answer that the prompt has begun already: `<think>`, or "" mostly."""
        if self.header is not None:
            begun = prompt[prompt.rfind(self.header) + len(self.header) :]
            return begun if self.header in prompt else ""
        if self.thinking is not None and prompt.rstrip().endswith(self.thinking.begin.rstrip()):
            return self.thinking.begin
        return ""

    def read_answer(self, reader: Reader, output: Output) -> Steps[None]:
        """Reads a whole answer; ends at END."""
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
                # Without its first character no marker is found here again.
                first = yield from reader.read()
                output.content(str(first))


def _attempt(part: Part, reader: Reader, output: Output) -> Steps[bool]:
    """Runs `part`. False, and nothing is read, if the text is not for it."""
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
    """The part that takes all text for reasoning until one of `ends`, which it reads too."""

    def read(reader: Reader, output: Output) -> Steps[None]:
        reader.limit = None
        output.open_reasoning()
        end = yield from reader.scan(reader.markers(ends), output.reasoning, remember=False)
        if end != END:
            output.close_reasoning()
        reader.commit()

    return read
