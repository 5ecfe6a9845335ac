"""Streaming parsers of answers: text or token ids in, events out.

`AnswerParser` takes text. `TokenParser` takes token ids; it decodes them, handles stop strings, and
distinguishes control tokens from the same characters as text. The parsers never raise because of
what a model writes, and the events (with neighbouring pieces joined) do not depend on how the
answer was split into pieces.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zinc.chat.events import Event
from zinc.chat.format import ChatFormat
from zinc.chat.output import Output
from zinc.chat.reader import END, Mark, Reader
from zinc.chat.schema import Tools
from zinc.tokenizer import Tokenizer
from zinc.tokenizer.stream import StopMatcher


class AnswerParser:
    """Parser of an answer: text and control tokens in, events out.

    tools: the tools of the request, in the form of OpenAI or Anthropic; without tools, calls are
    text. opened: the beginning of the answer that is part of the prompt (`ChatFormat.opened`).
    controls: markers that are control tokens of the vocabulary; they are recognised only if they
    are passed to `mark`.
    """

    def __init__(
        self,
        format: ChatFormat,
        tools: Sequence[Mapping[str, Any]] | None = None,
        opened: str = "",
        controls: Iterable[str] = (),
    ) -> None:
        self._controls = frozenset(controls)
        reader = Reader(self._controls)
        self._reader = reader
        self._output = Output(reader, Tools(tools) if tools else None, format.new_id)
        self._steps = format.read_answer(reader, self._output)
        self._finished = False
        next(self._steps)
        self._replay(opened, format.markers)

    @property
    def is_thinking(self) -> bool:
        """Whether the next text is reasoning."""
        return self._output.is_thinking

    def push(self, text: str) -> list[Event]:
        """Add text, and return the events that are now certain."""
        if not self._finished:
            for char in text:
                self._steps.send(char)
        return self._output.take()

    def mark(self, text: str) -> list[Event]:
        """Add a control token by its text, and return the events that are now certain."""
        if not self._finished and text:
            self._steps.send(Mark(text))
        return self._output.take()

    def finish(self) -> list[Event]:
        """End the answer, and return the remaining events. An unfinished call ends incomplete."""
        if not self._finished:
            self._finished = True
            try:
                self._steps.send(END)
            except StopIteration:
                self._output.finish()
        return self._output.take()

    def _replay(self, opened: str, markers: Sequence[str]) -> None:
        """Parse the part of the answer in the prompt. All markers in it are control tokens.

        Its events are dropped.
        """
        while opened:
            marker = next((text for text in markers if opened.startswith(text)), "")
            if marker in self._controls:
                self.mark(marker)
            else:
                marker = opened[0]
                self.push(marker)
            opened = opened[len(marker) :]
        self._output.take()


class TokenParser:
    """Parser of an answer: token ids in, events out.

    tools, opened: as for `AnswerParser`. stop: the answer ends before the first of these strings,
    in the text or in the reasoning. stopped: the string that ended it. End-of-answer tokens have no
    effect. Raises RequestError for an empty stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        format: ChatFormat,
        tools: Sequence[Mapping[str, Any]] | None = None,
        opened: str = "",
        stop: Iterable[str] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._marks = control_markers(tokenizer, format)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = StopMatcher(stop)
        self._parser = AnswerParser(format, tools, opened, self._marks.values())

    @property
    def is_thinking(self) -> bool:
        """Whether the next text is reasoning."""
        return self._parser.is_thinking

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._stop.matched

    def push(self, id: int) -> list[Event]:
        """Add a token, and return the events that are now certain, often none."""
        if self.stopped is not None:
            return []
        if id in self._marks:
            events = self._parser.push(self._flush())
            return events if self.stopped else events + self._parser.mark(self._marks[id])
        if id in self._tokenizer.special_ids:
            return []
        text = self._decoder.decode(self._tokenizer.token_bytes(id))
        return self._parser.push(self._stop.push(text))

    def finish(self) -> list[Event]:
        """End the answer, and return the remaining events."""
        return self._parser.push(self._flush()) + self._parser.finish()

    def _flush(self) -> str:
        text = self._stop.push(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return text if self.stopped else text + self._stop.finish()


def control_markers(tokenizer: Tokenizer, format: ChatFormat) -> dict[int, str]:
    """Return the markers of `format` that are control tokens of the vocabulary, by token id."""
    ids = {tokenizer.id_of(marker): marker for marker in format.markers}
    return {
        id: marker for id, marker in ids.items() if id is not None and id in tokenizer.special_ids
    }
