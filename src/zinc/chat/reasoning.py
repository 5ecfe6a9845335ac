"""Control over reasoning: on or off through the template, and a budget in tokens.

When the budget is spent the model's own end marker is put into its mouth: the engine feeds
`ThinkingBudget`'s ids instead of sampling, and the model goes on to its answer.
"""

from __future__ import annotations

from typing import Any, Protocol

from zinc.chat.format import ChatFormat
from zinc.core.errors import RequestError, UnsupportedError
from zinc.tokenizer import Tokenizer


def template_arguments(enabled: bool | None = None, effort: str | None = None) -> dict[str, Any]:
    """What tells a chat template whether, and how hard, the model shall think.

    Families differ in the name, and templates ignore names that they do not know. Harmony has no
    "off"; there only `effort` ("low", "medium", "high") counts.
    """
    arguments: dict[str, Any] = {}
    if enabled is not None:
        arguments |= {"enable_thinking": enabled, "thinking": enabled}
    if effort is not None:
        arguments["reasoning_effort"] = effort
    return arguments


class Thinker(Protocol):
    """What a budget asks a parser (`TokenParser` or `AnswerParser`)."""

    @property
    def is_thinking(self) -> bool: ...
    @property
    def is_matching(self) -> bool: ...


class ThinkingBudget:
    """Ends reasoning after `limit_tokens`.

    `end_ids` are the ids that end it: `message`, for those who want the model to know why, the end
    marker, and what the model writes before its answer. Raises UnsupportedError when the format has
    no reasoning, RequestError for a negative limit.
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
        """Ids that must come next instead of sampled ones; nearly always none.

        Call it once before the first token with `n_tokens` = 0, then after each step with the
        number of tokens that were pushed to `parser`. An end marker that the model has begun itself
        is waited for.
        """
        if not parser.is_thinking:
            return ()
        self.used_tokens += n_tokens
        if self.used_tokens < self.limit_tokens or parser.is_matching:
            return ()
        return self.end_ids
