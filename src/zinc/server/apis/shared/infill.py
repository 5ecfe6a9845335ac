"""Prompts for fill-in-the-middle models, which generate the text between a prefix and a suffix.

The format is that of Qwen2.5-Coder (https://arxiv.org/abs/2409.12186, section 3.2), which other
models share. Text of other files comes first; if the vocabulary has markers for files, they are
marked as files of a repository.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from zinc.chat.events import Event
from zinc.server.errors import ApiError, context_exceeded
from zinc.server.http.fields import Fields
from zinc.server.runtime.reader import PlainReader, content_events
from zinc.server.runtime.served_model import ServedModel
from zinc.tokenizer import Tokenizer
from zinc.tokenizer.vocabulary import FillMarks

# An upper bound of the mean characters per token of a text; code has three to four.
_TOKEN_CHARACTERS = 16


class Chunk(Fields):
    """A piece of another file, as context."""

    text: str
    filename: str = ""


def fill_prompt(
    model: ServedModel,
    prefix: str,
    suffix: str,
    *,
    param: str,
    extra: Sequence[Chunk] = (),
    begun: str = "",
    answer: int = 0,
) -> list[int]:
    """Return the token ids of a prompt for the text between `prefix` + `begun` and `suffix`.

    param: the request field to name in errors. extra: pieces of other files, the most important
    last. answer: tokens of the context that stay free. If the prompt is too long, the beginning of
    `extra` is left out first, then the text farthest from the gap. Raises ApiError: 501 for a model
    without fill-in-the-middle markers, 400 if `begun` does not fit.
    """
    tokenizer = model.tokenizer
    marks = tokenizer.fill
    if marks is None:
        raise ApiError(
            501,
            f"the model {model.name!r} cannot fill gaps",
            "its vocabulary has no fill-in-the-middle markers",
            "use a code model with these markers, such as Qwen2.5-Coder",
            code="unsupported_model",
            param=param,
        )
    # Text beyond the context is left out below, so it need not be tokenized.
    n_characters = model.context * _TOKEN_CHARACTERS
    before, behind, written = (
        tokenizer.encode(text, add_special=False)
        for text in (prefix[-n_characters:], suffix[:n_characters], begun[:n_characters])
    )
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    room = model.context - max(answer, 1) - len(bos) - len(written) - 3
    if room < 0:
        raise context_exceeded(model.context - room, model.context, param)
    # The text before the gap is more useful than the text after it.
    n_behind = min(len(behind), max(room // 4, room - len(before)))
    n_before = min(len(before), room - n_behind)
    around = _around(tokenizer, marks, extra, n_characters)
    n_around = min(len(around), room - n_before - n_behind)
    return [
        *bos,
        *around[len(around) - n_around :],
        marks.prefix,
        *before[len(before) - n_before :],
        *written,
        marks.suffix,
        *behind[:n_behind],
        marks.middle,
    ]


def _latest(extra: Sequence[Chunk], n_characters: int) -> list[Chunk]:
    """Return the last chunks with `n_characters` of text in all; the first of them may be cut."""
    found: list[Chunk] = []
    for chunk in reversed(extra):
        if n_characters <= 0:
            break
        found.append(chunk.model_copy(update={"text": chunk.text[-n_characters:]}))
        n_characters -= len(chunk.text) + len(chunk.filename or "") + 1
    return found[::-1]


def _around(
    tokenizer: Tokenizer, marks: FillMarks, extra: Sequence[Chunk], n_characters: int
) -> list[int]:
    """Return the token ids of the other files, with their names if the model has file markers.

    Only the last `n_characters` of the files are used.
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    extra = _latest(extra, n_characters)
    if not extra:
        return []
    if marks.file is None:
        return encode("".join(f"{chunk.text}\n\n" for chunk in extra))
    found = [] if marks.repository is None else [marks.repository, *encode("project\n")]
    for chunk in extra:
        found += [marks.file, *encode(f"{chunk.filename or 'file'}\n{chunk.text}\n")]
    return [*found, marks.file, *encode("file\n")]


class IndentReader(PlainReader):
    """Reader that ends an answer before a line indented by less than `n_indent`; 0 turns it off."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], n_indent: int) -> None:
        super().__init__(tokenizer, stop)
        self._less = re.compile(rf"\n[ \t]{{0,{n_indent - 1}}}[^ \t\n]") if n_indent else None
        self._held = ""
        self._left = False

    @property
    def stopped(self) -> str | None:
        return "\n" if self._left else super().stopped

    def push(self, id: int) -> list[Event]:
        return self._pass(self._decoder.push(id), last=False)

    def finish(self) -> list[Event]:
        return self._pass(self._decoder.finish(), last=True)

    def _pass(self, text: str, last: bool) -> list[Event]:
        if self._left:
            return []
        if self._less is None:
            return content_events(text)
        self._held += text
        if found := self._less.search(self._held):
            self._left, end = True, found.start()
        else:  # hold back a line whose indentation is not complete yet
            line = re.search(r"\n[ \t]*\Z", self._held)
            end = len(self._held) if last or line is None else line.start()
        text, self._held = self._held[:end], self._held[end:]
        return content_events(text)
