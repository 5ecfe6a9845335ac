"""An answer of a chat as pieces: content, reasoning and tool calls, and then how it ended.

The calls of a forced answer may have to be checked against a JSON schema first. `ChatAnswer` then
holds them back until all are complete, and generates the answer again if they are not valid.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import field

from zinc.chat.events import Answer, CallArguments, CallEnd, CallStart, Content, Event
from zinc.core.dataclass import dataclass
from zinc.engine.sampling import Sampled
from zinc.engine.sequence import Timings
from zinc.server.errors import ApiError
from zinc.server.runtime.job import End, Progress
from zinc.server.runtime.runner import Generation

MAX_ATTEMPTS = 3  # to generate calls that pass the check
_CALL_EVENTS = (CallStart, CallArguments, CallEnd)


@dataclass(frozen=True, slots=True)
class Finished:
    """How an answer ended.

    reason: "stop", "length" or "calls". stop: the stop string that matched, if any.
    """

    reason: str
    stop: str | None
    timings: Timings
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """An event of an answer, and the tokens of its text if it is content.

    timings: of the answer so far, if the request asks for them. progress: how much of the prompt
    has been processed; the event is then empty content.
    """

    event: Event
    tokens: tuple[Sampled, ...] = ()
    timings: Timings | None = None
    progress: Progress | None = None


@dataclass(slots=True)
class Collected:
    """A whole answer, built from its pieces."""

    answer: Answer = field(default_factory=Answer)
    tokens: list[Sampled] = field(default_factory=list)
    end: Finished | None = None

    def add(self, item: Piece | Finished) -> None:
        """Add a piece, or the end of the answer."""
        if isinstance(item, Finished):
            self.end = item
            return
        self.tokens += item.tokens
        self.answer.add(item.event)

    @property
    def finished(self) -> Finished:
        """The way the answer ended. Raises RuntimeError while it is not finished."""
        if self.end is None:
            raise RuntimeError("the answer has no end")
        return self.end


@dataclass(frozen=True, slots=True)
class CallCheck:
    """The check of an answer's calls.

    violation: takes the calls as pairs of name and arguments; returns why they are not valid, or
    None. retry: generates the answer again; takes the number of the attempt, from 1.
    """

    violation: Callable[[Sequence[tuple[str, str]]], Awaitable[str | None]]
    retry: Callable[[int], Awaitable[Generation]]


class ChatAnswer:
    """A running answer: an async iterator of its pieces, with `Finished` as the last item.

    With a `check`, the calls are yielded after they passed it. Reasoning is yielded as it is
    generated, but only in the first attempt. Iterating raises ApiError if generating fails.
    """

    def __init__(self, generation: Generation, check: CallCheck | None = None) -> None:
        self.generation = generation
        self._check = check

    def __aiter__(self) -> AsyncGenerator[Piece | Finished]:
        return self._pieces() if self._check is None else self._checked(self._check)

    async def _checked(self, check: CallCheck) -> AsyncGenerator[Piece | Finished]:
        why: str | None = None
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                self.generation = await check.retry(attempt)
            held_back: list[Piece | Finished] = []
            async with aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Finished) or isinstance(piece.event, _CALL_EVENTS):
                        held_back.append(piece)
                    elif attempt == 0:
                        yield piece
            why = await check.violation(_complete_calls(held_back))
            if why is None:
                for piece in held_back:
                    yield piece
                return
        raise ApiError(
            500,
            f"the model wrote no valid call in {MAX_ATTEMPTS} attempts",
            f"in the last one, {why}",
            "simplify the tool's schema, or try again",
            code="invalid_tool_arguments",
        )

    async def _pieces(self) -> AsyncGenerator[Piece | Finished]:
        pending: list[Sampled] = []
        n_calls, reasoning_tokens = 0, 0
        async for item in self.generation:
            if isinstance(item, Progress):
                yield Piece(Content(""), progress=item)
                continue
            if not isinstance(item, End):
                reasoning_tokens += item.thinking
                # Log-probabilities are reported for content only.
                pending = [] if item.thinking else [*pending, item.sampled]
            for event in item.events:
                tokens: tuple[Sampled, ...] = ()
                if isinstance(event, Content):
                    tokens, pending = tuple(pending), []
                elif isinstance(event, CallEnd):
                    n_calls += event.complete
                    pending = []
                yield Piece(event, tokens, item.timings)
            if isinstance(item, End):
                reason = "calls" if n_calls and item.reason == "stop" else item.reason
                yield Finished(reason, item.stop, item.timings, reasoning_tokens)

    def cancel(self) -> None:
        """End the answer, unless it has ended already."""
        self.generation.cancel()

    async def collect(self) -> Collected:
        """Wait for the end and return the whole answer."""
        whole = Collected()
        async for item in self:
            whole.add(item)
        return whole


def _complete_calls(pieces: Sequence[Piece | Finished]) -> list[tuple[str, str]]:
    """Return name and arguments of each complete call in `pieces`."""
    calls = Answer.of(piece.event for piece in pieces if isinstance(piece, Piece)).calls
    return [(each.name, each.arguments) for each in calls if each.complete]
