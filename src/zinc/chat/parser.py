"""The streaming parser of answers: text and control tokens in, events out.

`AnswerParser` takes text; `TokenParser` in front of it takes token ids, keeps characters whole,
honours stop strings, and tells control tokens from the same characters written out. Neither raises
on anything that a model writes, and how the answer was cut into pieces changes no event once
neighbouring pieces are joined.
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
    """Push text and marks, get events.

    `tools` are those of the request, in OpenAI's shape or Anthropic's; without any, calls are not
    looked for and stay text. `opened` is the part of the answer that the prompt has begun already
    (`ChatFormat.opened`). `controls` are the markers that are control tokens in the model's
    vocabulary: these count only when they come through `mark`.
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
        """Whether what comes next is reasoning."""
        return self._output.is_thinking

    @property
    def is_matching(self) -> bool:
        """Whether the text so far ends in what may be the beginning of a marker."""
        return self._reader.is_matching

    def push(self, text: str) -> list[Event]:
        """The events that became certain with this text."""
        if not self._finished:
            for char in text:
                self._steps.send(char)
        return self._output.take()

    def mark(self, text: str) -> list[Event]:
        """As `push`, for one control token, given as its text."""
        if not self._finished and text:
            self._steps.send(Mark(text))
        return self._output.take()

    def finish(self) -> list[Event]:
        """The answer is over: the rest of the events. A call that was cut off ends incomplete."""
        if not self._finished:
            self._finished = True
            try:
                self._steps.send(END)
            except StopIteration:
                self._output.finish()
        return self._output.take()

    def _replay(self, opened: str, markers: Sequence[str]) -> None:
        """Feed what stands in the prompt, whose markers are all real. It makes no events."""
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
    """Push the ids that a model generates, get events.

    `stop` strings end the text before them, whether they come in the answer or in the reasoning;
    `stopped` is the one that did. Tokens that end an answer need not be pushed and do nothing.
    Raises RequestError for an empty stop string.
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
        """Whether what comes next is reasoning."""
        return self._parser.is_thinking

    @property
    def is_matching(self) -> bool:
        """Whether the text so far ends in what may be the beginning of a marker."""
        return self._parser.is_matching

    @property
    def stopped(self) -> str | None:
        return self._stop.matched

    def push(self, id: int) -> list[Event]:
        """The events that became certain with this token; often none."""
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
        """The answer is over: the rest of the events."""
        return self._parser.push(self._flush()) + self._parser.finish()

    def _flush(self) -> str:
        text = self._stop.push(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return text if self.stopped else text + self._stop.finish()


def control_markers(tokenizer: Tokenizer, format: ChatFormat) -> dict[int, str]:
    """The format's markers that are control tokens of this vocabulary, by id."""
    ids = {tokenizer.id_of(marker): marker for marker in format.markers}
    return {
        id: marker for id, marker in ids.items() if id is not None and id in tokenizer.special_ids
    }
