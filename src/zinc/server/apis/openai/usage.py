"""Token counts, timings and log-probabilities of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.engine.sampling import Sampled
from zinc.engine.sequence import Timings
from zinc.server.apis.shared.fields import finite_logprob
from zinc.server.runtime.job import Progress
from zinc.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request. Its answers share one prompt.

    drafted: tokens that speculation proposed, of which `accepted` are in the answers. The others
    are not part of `completion`.
    """

    prompt: int
    cached: int
    completion: int
    reasoning: int = 0
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, timings: Sequence[Timings], reasoning: int = 0) -> Usage:
        """Return the token counts of a request, given the timings of its answers."""
        return cls(
            max(t.prompt_tokens for t in timings),
            max(t.cached_tokens for t in timings),
            sum(t.generated_tokens for t in timings),
            reasoning,
            sum(t.drafted_tokens for t in timings),
            sum(t.accepted_tokens for t in timings),
        )

    def openai(self) -> dict[str, Any]:
        """Return the counts as the `usage` object of OpenAI's chat API."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.drafted - self.accepted,
            },
        }


def timings_object(t: Timings) -> dict[str, Any]:
    """Return times and speeds as the `timings` object of llama.cpp's server.

    The first token comes with the last step of the prompt, so the decode speed counts from the
    second token on.
    """
    n_steps = t.generated_tokens - 1
    run = t.prompt_tokens - t.cached_tokens
    drafts = {}
    if t.drafted_tokens:
        drafts = {"draft_n": t.drafted_tokens, "draft_n_accepted": t.accepted_tokens}
    prompt_ms, predicted_ms = t.prompt_seconds * 1000, t.generate_seconds * 1000
    return {
        "cache_n": t.cached_tokens,
        "prompt_n": run,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(run, 1),
        "prompt_per_second": t.prompt_tokens_per_s,
        "predicted_n": t.generated_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / n_steps if n_steps > 0 else 0.0,
        "predicted_per_second": t.generated_tokens_per_s,
        "shifted_n": t.shifted_tokens,
        **drafts,
    }


def timings_member(timings: Timings | None) -> dict[str, Any]:
    """Return the member `timings` of a chunk, or nothing if there are no timings."""
    return {} if timings is None else {"timings": timings_object(timings)}


def progress_members(progress: Progress, with_timings: bool | None) -> dict[str, Any]:
    """Return the members that report the progress of a prompt, as in llama.cpp's server."""
    t = progress.timings
    found = {
        "total": progress.n_prompt,
        "cache": t.cached_tokens,
        "processed": t.prompt_tokens,
        "time_ms": round(t.prompt_seconds * 1000),
    }
    return {"prompt_progress": found, **timings_member(t if with_timings else None)}


def token_logprob(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    """Return the text, the bytes and the log-probability of a token."""
    piece = tokenizer.token_bytes(token)
    return {
        "token": piece.decode("utf-8", "replace"),
        "logprob": finite_logprob(logprob),
        "bytes": list(piece),
    }


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Sampled]) -> list[dict[str, Any]]:
    """Return the log-probabilities of `tokens` as `logprobs.content` of the chat API."""
    return [
        {
            **token_logprob(tokenizer, s.token, s.logprob),
            "top_logprobs": [token_logprob(tokenizer, t, p) for t, p in s.top_logprobs],
        }
        for s in tokens
    ]
