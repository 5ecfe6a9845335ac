"""Answers that are plain text: pieces, with the tokens they are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from zinc.chat.events import Content
from zinc.engine.sampling import Sampled
from zinc.server.runner import End, Generation


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text that became final, and the tokens since the last piece."""

    text: str
    tokens: tuple[Sampled, ...]


async def plain_text(generation: Generation) -> AsyncGenerator[PlainText | End]:
    """The pieces of an answer, and its end. Tokens whose text is still held back wait for it."""
    pending: list[Sampled] = []
    async for item in generation:
        text = "".join(each.text for each in item.events if isinstance(each, Content))
        if not isinstance(item, End):
            pending.append(item.sampled)
            if text:
                yield PlainText(text, tuple(pending))
                pending = []
        else:
            if text:
                yield PlainText(text, tuple(pending))
            yield item
