"""Streaming an answer to the terminal: the answer on stdout, reasoning dimmed.

`run` and `chat` share it. Only the answer and a final newline go to stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TextIO

from zinc.chat.events import Content, Event, Reasoning
from zinc.core.dataclass import dataclass
from zinc.core.terminal import is_plain, write_control

if TYPE_CHECKING:
    from zinc.chat.parser import AnswerParser
    from zinc.chat.template import ChatTemplate
    from zinc.engine.sequence import Timings
    from zinc.llm import Chunk

DIM, RESET = "\x1b[2m", "\x1b[0m"


@dataclass(slots=True)
class Answer:
    """A finished answer.

    text: without reasoning. finish_reason: None if the user stopped it.
    """

    text: str
    finish_reason: str | None
    timings: Timings | None

    def fills(self, context: int) -> bool:
        """Return whether the answer was cut off where `context` tokens were used up."""
        t = self.timings
        n_tokens = 0 if t is None else t.prompt_tokens + t.generated_tokens
        return self.finish_reason == "length" and n_tokens >= context


class Printer:
    """Printer of an answer while it grows. aside: where reasoning goes; None drops it."""

    def __init__(self, out: TextIO, aside: TextIO | None) -> None:
        self._out, self._aside = out, aside
        self._dim = aside is not None and not is_plain(aside)
        self._reasoning = False
        self._ends_line = True

    def write(self, text: str, *, is_reasoning: bool = False) -> None:
        stream = self._aside if is_reasoning else self._out
        if stream is None:
            return
        if is_reasoning and not self._reasoning:
            write_control(stream, DIM if self._dim else "")
        elif self._reasoning and not is_reasoning:
            self.end_reasoning()
        self._reasoning = is_reasoning
        stream.write(text)
        stream.flush()
        self._ends_line = text.endswith("\n")

    def end_reasoning(self) -> None:
        if self._reasoning and self._aside is not None:
            write_control(self._aside, RESET if self._dim else "")
            self._aside.write("" if self._ends_line else "\n")
            self._aside.flush()
        self._reasoning = False

    def end(self) -> None:
        """End the line, and the dimming if it is on."""
        if self._reasoning:
            self.end_reasoning()
        elif not self._ends_line:
            self._out.write("\n")
        self._out.flush()
        self._ends_line = True


def show(
    chunks: Iterable[Chunk],
    printer: Printer,
    parser: AnswerParser | None,
    stopped: Callable[[], bool] = lambda: False,
) -> Answer:
    """Print the text of `chunks` until they end or `stopped()` is true; return the answer.

    Without a parser, reasoning is printed as part of the answer.
    """
    answer = Answer("", None, None)
    parts: list[str] = []

    def write(events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Reasoning):
                printer.write(event.text, is_reasoning=True)
            elif isinstance(event, Content):
                printer.write(event.text)
                parts.append(event.text)

    try:
        for chunk in chunks:
            if chunk.text:
                write(parser.push(chunk.text) if parser else [Content(chunk.text)])
            if chunk.finish_reason is not None:
                answer.finish_reason, answer.timings = chunk.finish_reason, chunk.timings
            if stopped():
                break
        if parser:
            write(parser.finish())
    finally:
        try:
            printer.end()  # raises BrokenPipeError if the reader has closed stdout
        finally:
            if (close := getattr(chunks, "close", None)) is not None:
                close()  # cancels the request while the engine still exists
    answer.text = "".join(parts)
    return answer


def parser_for(template: ChatTemplate, prompt: str) -> AnswerParser:
    """Return a parser that separates reasoning from the answer that follows `prompt`."""
    from zinc.chat.formats import detect
    from zinc.chat.parser import AnswerParser

    format = detect(template.source)
    return AnswerParser(format, opened=format.opened(prompt))


def has_reasoning(template_source: str) -> bool:
    """Return whether a chat template marks reasoning."""
    from zinc.chat.formats import detect

    marks = detect(template_source).thinking
    return marks is not None and (
        marks.anywhere or any(mark.strip() in template_source for mark in (marks.begin, marks.end))
    )


def note_think(template: ChatTemplate, think: bool | None) -> None:
    """Print a note if --think or --no-think has no effect with this template."""
    from zinc.chat.formats import detect
    from zinc.chat.reasoning import template_arguments

    if think is None:
        return
    messages = [{"role": "user", "content": "Hello"}]
    on, off = (template.render(messages, **template_arguments(wanted)) for wanted in (True, False))
    format = detect(template.source)
    always = format.thinking is not None and (format.thinking.anywhere or bool(format.opened(on)))
    if on != off or (think and always) or not (think or has_reasoning(template.source)):
        return
    option, switch = ("--think", "on") if think else ("--no-think", "off")
    print(
        f"zinc: {option} has no effect: the chat template of {template.name} cannot turn reasoning "
        f"{switch}.",
        file=sys.stderr,
    )


def describe(timings: Timings) -> str:
    """Return tokens and speeds of a request in one line."""
    t = timings
    cached = f" ({t.cached_tokens} cached)" if t.cached_tokens else ""
    drafts = ""
    if t.drafted_tokens:
        drafts = f"; {t.tokens_per_step:.2f} tokens/step, {t.accepted_tokens} of "
        drafts += f"{t.drafted_tokens} drafted tokens accepted"
    return (
        f"prompt {t.prompt_tokens} tokens{cached}, {t.prompt_tokens_per_s:.1f} tokens/s; "
        f"answer {t.generated_tokens} tokens, {t.generated_tokens_per_s:.1f} tokens/s; "
        f"first token after {t.first_token_seconds:.3f} s{drafts}"
    )


def report(timings: Timings | None) -> None:
    if timings is not None:
        print(f"zinc: {describe(timings)}", file=sys.stderr)
