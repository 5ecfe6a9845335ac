"""What may come next: a constraint limits each token of an answer, a thinking budget its reasoning.

Both belong to one sequence. A constraint is built at the edge (zinc.engine.structured makes one
from a schema or grammar). The engine puts in what it dictates, asks it about what else the sampler
would draw, and tells it every token. It holds from the end of the reasoning on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zinc.engine.sampling.allowed import Allowed


class Constraint(Allowed, Protocol):
    """Limits the tokens of one sequence. Called by one thread at a time.

    Whatever raises ZincError fails the request: nothing is ever let through unasked.
    """

    def accept(self, token: int) -> None:
        """Takes a token that is allowed. Raises ZincError when it cannot."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing may follow."""
        ...


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model marks its reasoning, and how much of it a request wants.

    start, end: token ids of the markers, as the model writes them. inside: whether the prompt ends
    within the reasoning. opens: the answer begins with the start marker, which is put in: without
    it a constraint would hold from the first token on. budget_tokens: after so many tokens of
    reasoning the end marker is put in and the answer goes on behind it; None sets no limit.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    inside: bool = False
    budget_tokens: int | None = None
    opens: bool = False

    @classmethod
    def after(
        cls,
        prompt: Sequence[int],
        start: Sequence[int],
        end: Sequence[int],
        budget_tokens: int | None = None,
        opens: bool = False,
    ) -> Thinking:
        """As a prompt leaves it: inside when its last start marker has no end behind it."""
        inside = _last(prompt, start) > _last(prompt, end)
        return cls(tuple(start), tuple(end), inside, budget_tokens, opens and not inside)


class ThinkingTracker:
    """Follows the tokens of one answer, and says when its reasoning has to be ended."""

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self.inside = thinking.inside
        self.n_tokens = 0
        self._tail: list[int] = []
        self._opens = thinking.opens

    def accept(self, token: int) -> None:
        t = self._thinking
        self._tail.append(token)
        marker = t.end if self.inside else t.start
        del self._tail[: -max(len(t.start), len(t.end))]
        self.n_tokens += self.inside
        if marker and tuple(self._tail[-len(marker) :]) == marker:
            self.inside = not self.inside
            self._tail.clear()

    def forced(self) -> tuple[int, ...]:
        """Tokens that have to come next: what is missing of the end marker, or none."""
        t = self._thinking
        if self._opens:
            self._opens = False
            return t.start
        if not self.inside or t.budget_tokens is None or self.n_tokens < t.budget_tokens:
            return ()
        begun = next(
            (n for n in reversed(range(1, len(t.end))) if tuple(self._tail[-n:]) == t.end[:n]), 0
        )
        return t.end[begun:]


def _last(ids: Sequence[int], marker: Sequence[int]) -> int:
    """Where a marker occurs last, or -1."""
    n, wanted = len(marker), list(marker)
    if n == 0:
        return -1
    return next(
        (i for i in reversed(range(len(ids) - n + 1)) if list(ids[i : i + n]) == wanted), -1
    )
