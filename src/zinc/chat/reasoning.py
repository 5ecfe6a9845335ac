"""Control of reasoning: on or off by template variables, and a token budget.

When the budget is used up, the engine inserts the end marker of the reasoning instead of sampling,
and the model continues with its answer.
"""

from __future__ import annotations

from typing import Any, Protocol

from zinc.chat.format import ChatFormat
from zinc.core.errors import RequestError, UnsupportedError
from zinc.tokenizer import Tokenizer


def template_arguments(enabled: bool | None = None, effort: str | None = None) -> dict[str, Any]:
    """Return the template variables that turn reasoning on or off and set its effort.

    Model families use different names; templates ignore unknown variables. Harmony (gpt-oss) cannot
    turn reasoning off, and only reads `effort` ("low", "medium" or "high").
    """
    arguments: dict[str, Any] = {}
    if enabled is not None:
        arguments |= {"enable_thinking": enabled, "thinking": enabled}
    if effort is not None:
        arguments["reasoning_effort"] = effort
    return arguments


class Thinker(Protocol):
    """The part of a parser (`TokenParser` or `AnswerParser`) that a budget needs."""

    @property
    def is_thinking(self) -> bool: ...
    @property
    def is_matching(self) -> bool: ...


class ThinkingBudget:
    """A limit of `limit_tokens` on reasoning.

    message: text to insert before the end marker, for example to tell the model why its reasoning
    ends. end_ids: the token ids to insert: the message, the end marker, and the text that leads to
    the answer. Raises UnsupportedError if the format has no reasoning, and RequestError for a
    negative limit.
    """

    def __init__(
        self, tokenizer: Tokenizer, format: ChatFormat, limit_tokens: int, message: str = ""
    ) -> None:
        if format.thinking is None:
            raise UnsupportedError(
                "this model has no thinking budget",
                f"its chat format ({format.name}) has no markers around reasoning",
            )
        if limit_tokens < 0:
            raise RequestError(f"a thinking budget of {limit_tokens} tokens is not possible")
        self.limit_tokens = limit_tokens
        self.used_tokens = 0
        end = message + format.thinking.end + format.thinking.resume
        self.end_ids = tuple(tokenizer.encode(end, add_special=False, parse_special=True))

    def step(self, parser: Thinker, n_tokens: int = 1) -> tuple[int, ...]:
        """Return the token ids to insert before sampling goes on; usually none.

        Call it before the first token with `n_tokens` = 0, and after each step with the number of
        tokens that were pushed to `parser`. If the model has begun to write the end marker itself,
        nothing is inserted.
        """
        if not parser.is_thinking:
            return ()
        self.used_tokens += n_tokens
        if self.used_tokens < self.limit_tokens or parser.is_matching:
            return ()
        return self.end_ids
