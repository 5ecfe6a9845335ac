"""The turns of a conversation that the model sees, if the context cannot hold all of them."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from zinc.core.errors import RequestError

if TYPE_CHECKING:
    from zinc.engine.sampling import SamplingParams
    from zinc.llm import LLM

Message: TypeAlias = dict[str, str]

# Share of the context that is kept free for an answer, unless the answer is limited to less.
ANSWER_SHARE = 1 / 8
# Turns are left out until the rest takes this share of the context. The next turns then fit,
# and their prompts share a prefix in the cache.
KEPT_SHARE = 1 / 2


class Window:
    """The newest turns of a chat that fit in the context of `llm`.

    A note on stderr tells when older turns are left out.
    """

    def __init__(self, llm: LLM, params: SamplingParams, template_args: dict[str, Any]) -> None:
        self._llm, self._template_args = llm, template_args
        reserve = max(1, int(llm.context * ANSWER_SHARE))
        answer = reserve if params.max_tokens is None else min(reserve, params.max_tokens)
        self._most = llm.context - answer
        self._n_left_out = 0

    def fit(self, system: str, messages: Sequence[Message]) -> tuple[list[Message], list[int]]:
        """Return the messages that the model sees, and their token ids.

        messages: alternate between user and assistant, and end with the user. The system prompt and
        the last message are always kept. Raises RequestError if they alone are too long.
        """
        context = self._llm.context
        head = system_message(system)
        starts = range(self._n_left_out, len(messages), 2)

        @cache
        def encode(first: int) -> list[int] | None:
            """Return the ids of all messages starting at `first`, None if there are too many."""
            try:
                return self._llm.render([*head, *messages[first:]], **self._template_args)
            except RequestError:
                if first == starts[-1]:
                    raise
                return None

        def is_within(first: int, limit: float) -> bool:
            ids = encode(first)
            return ids is not None and len(ids) <= limit

        first = self._first(starts, is_within)
        ids = encode(first) or []
        if len(ids) >= context:
            raise RequestError(
                "the message is too long",
                f"it has {len(ids):,} tokens{' with the system prompt' if system else ''}, and the "
                f"context holds {context:,} including the answer",
                "shorten it, or start again with a larger --context",
            )
        if first > self._n_left_out:
            self._n_left_out = first
            turns = "first turn" if first == 2 else f"first {first // 2} turns"
            print(
                f"zinc: the context of {context:,} tokens is full, so the model does not see the "
                f"{turns} of this conversation.",
                file=sys.stderr,
            )
        return [*head, *messages[first:]], ids

    def _first(self, starts: Sequence[int], is_within: Callable[[int, float], bool]) -> int:
        """Return which of `starts` the model's view begins at; a later start takes fewer tokens."""

        def earliest(limit: float) -> int:
            found = bisect_left(starts, True, key=lambda first: is_within(first, limit))
            return starts[min(found, len(starts) - 1)]

        if is_within(starts[0], self._most):
            return starts[0]
        kept = earliest(self._llm.context * KEPT_SHARE)
        # The most recent turn is dropped only if there is no room for it at all.
        return max(earliest(self._most), min(kept, starts[-2:][0]))


def system_message(text: str) -> list[Message]:
    """Return the messages of a system prompt: one, or none if it is empty."""
    return [{"role": "system", "content": text}] if text else []
