"""Limits on the next token of an answer: a constraint on its form, a budget for its reasoning.

Both belong to one sequence. `zinc.engine.structured` makes constraints from schemas and grammars.
The engine appends the tokens that a constraint dictates, asks it about the tokens that the sampler
would choose, and tells it every token. A constraint applies once the reasoning has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from zinc.core.dataclass import dataclass
from zinc.engine.sampling.allowed import Allowed


class Constraint(Allowed, Protocol):
    """Constraint on the tokens of one sequence. One thread calls it at a time.

    A ZincError that it raises fails the request; no token passes unchecked.
    """

    def accept(self, token: int) -> None:
        """Take an allowed token. Raises ZincError if the token is not allowed."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, so that nothing may follow."""
        ...


@dataclass(frozen=True, slots=True)
class Thinking:
    """The markers of a model's reasoning, and how a request limits it.

    start, end: token ids of the markers. inside: whether the prompt ends within reasoning. opens:
    begin the answer with the start marker; a constraint would otherwise apply from the first token.
    budget_tokens: append the end marker after this many tokens of reasoning; None sets no limit.
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
        """Return the state after a prompt: inside if its last start marker has no end marker."""
        inside = _last(prompt, start) > _last(prompt, end)
        return cls(tuple(start), tuple(end), inside, budget_tokens, opens and not inside)


class ThinkingTracker:
    """State of one answer's reasoning, which decides when the reasoning must end."""

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
        """Return the tokens of a marker that must come next; none if the model is free."""
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
    """Return the last position at which `marker` occurs in `ids`, or -1."""
    n, wanted = len(marker), list(marker)
    if n == 0:
        return -1
    return next(
        (i for i in reversed(range(len(ids) - n + 1)) if list(ids[i : i + n]) == wanted), -1
    )
