"""Answers that are plain text: pieces, with the tokens they are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from zinc.chat.events import Content
from zinc.engine.sampling import Sampled
from zinc.engine.sequence import Timings
from zinc.server.runtime.job import End, Progress
from zinc.server.runtime.runner import Generation


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text that became final, and the tokens since the last piece; or how far the prompt is."""

    text: str
    tokens: tuple[Sampled, ...]
    timings: Timings | None = None
    progress: Progress | None = None


async def plain_text(generation: Generation) -> AsyncGenerator[PlainText | End]:
    """The pieces of an answer, and its end. Tokens whose text is still held back wait for it."""
    pending: list[Sampled] = []
    async for item in generation:
        if isinstance(item, Progress):
            yield PlainText("", (), progress=item)
            continue
        text = "".join(each.text for each in item.events if isinstance(each, Content))
        if not isinstance(item, End):
            pending.append(item.sampled)
            if text:
                yield PlainText(text, tuple(pending), item.timings)
                pending = []
        else:
            if text:
                yield PlainText(text, tuple(pending))
            yield item
