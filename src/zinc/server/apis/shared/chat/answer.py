"""Answers of a chat: pieces of text, reasoning and calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from zinc.chat.events import Answer, CallArguments, CallEnd, CallStart, Content, Event
from zinc.engine.sampling import Sampled
from zinc.engine.sequence import Timings
from zinc.server.errors import ApiError
from zinc.server.runtime.job import End, Progress
from zinc.server.runtime.runner import Generation

MAX_ATTEMPTS = 3  # at a call that has to be checked
_CALL_EVENTS = (CallStart, CallArguments, CallEnd)


@dataclass(frozen=True, slots=True)
class Finished:
    """How an answer ended. reason: "stop", "length" or "calls"."""

    reason: str
    stop: str | None
    timings: Timings
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """An event, and the tokens that content is made of; empty where it tells of the prompt."""

    event: Event
    tokens: tuple[Sampled, ...] = ()
    timings: Timings | None = None
    progress: Progress | None = None


@dataclass(slots=True)
class Collected:
    """A whole answer."""

    answer: Answer = field(default_factory=Answer)
    tokens: list[Sampled] = field(default_factory=list)
    end: Finished | None = None

    def add(self, item: Piece | Finished) -> None:
        if isinstance(item, Finished):
            self.end = item
            return
        self.tokens += item.tokens
        self.answer.add(item.event)

    @property
    def finished(self) -> Finished:
        if self.end is None:
            raise RuntimeError("the answer has no end")
        return self.end


@dataclass(frozen=True, slots=True)
class CallCheck:
    """The check of a complete answer's calls, and the way to generate the answer again.

    violation: why its calls, pairs of name and arguments, are not valid. again: starts the answer
    anew; the argument counts from 1.
    """

    violation: Callable[[Sequence[tuple[str, str]]], Awaitable[str | None]]
    again: Callable[[int], Awaitable[Generation]]


class ChatAnswer:
    """One answer on its way.

    With a `check`, its calls come once all of them are whole and valid. Reasoning streams as it is
    made, of the first attempt only.
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
                self.generation = await check.again(attempt)
            held: list[Piece | Finished] = []
            async with aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Finished) or isinstance(piece.event, _CALL_EVENTS):
                        held.append(piece)
                    elif attempt == 0:
                        yield piece
            why = await check.violation(_whole_calls(held))
            if why is None:
                for piece in held:
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
                # Log-probabilities are given for the content's tokens alone.
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
        self.generation.cancel()

    async def collect(self) -> Collected:
        whole = Collected()
        async for item in self:
            whole.add(item)
        return whole


def _whole_calls(pieces: Sequence[Piece | Finished]) -> list[tuple[str, str]]:
    """Names and arguments of the calls that are complete."""
    calls = Answer.of(piece.event for piece in pieces if isinstance(piece, Piece)).calls
    return [(each.name, each.arguments) for each in calls if each.complete]
