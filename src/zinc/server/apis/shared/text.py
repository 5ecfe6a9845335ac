"""Plain text answers as pieces of text with their tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from zinc.chat.events import Content
from zinc.core.dataclass import dataclass
from zinc.engine.sampling import Sampled
from zinc.engine.sequence import Timings
from zinc.server.runtime.job import End, Progress
from zinc.server.runtime.runner import Generation


@dataclass(frozen=True, slots=True)
class PlainText:
    """A piece of an answer's text and its tokens, or the progress of its prompt.

    timings: of the answer so far, if the request asks for them. progress: how much of the prompt
    has been processed; the text is then empty.
    """

    text: str
    tokens: tuple[Sampled, ...]
    timings: Timings | None = None
    progress: Progress | None = None


async def plain_text(generation: Generation) -> AsyncGenerator[PlainText | End]:
    """Yield the pieces of an answer, and then its end.

    Tokens whose text is held back (part of a character, or of a possible stop string) come with the
    next piece.
    """
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
