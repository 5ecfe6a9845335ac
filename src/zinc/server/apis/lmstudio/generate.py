"""POST /api/v0/chat/completions and /api/v0/completions: OpenAI's endpoints with statistics.

https://lmstudio.ai/docs/developer/rest/endpoints. Requests and answers are those of OpenAI's API.
An answer, or the last chunk of each choice in a stream, has the members `stats`, `model_info` and
`runtime` in addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc import __version__
from zinc.server.apis.openai import chat, completions
from zinc.server.apis.openai.common import Ended
from zinc.server.apis.shared.file_facts import facts_of
from zinc.server.apis.shared.service import Service
from zinc.server.runtime.served_model import ServedModel


async def chat_completions(service: Service, request: Request) -> Response:
    """Continue a conversation."""
    return await chat.chat_completions(service, request, partial(_members, service))


async def text_completions(service: Service, request: Request) -> Response:
    """Continue prompts."""
    return await completions.completions(service, request, partial(_members, service))


def _members(service: Service, model: ServedModel, ends: Sequence[Ended]) -> dict[str, Any]:
    """Return the members that LM Studio adds to an answer; the figures are of its first choice."""
    facts = facts_of(service.pool.named(model.name))
    timings = ends[0].timings
    return {
        "stats": {
            "tokens_per_second": timings.generated_tokens_per_s,
            "time_to_first_token": timings.first_token_seconds,
            "generation_time": timings.generate_seconds,
            "stop_reason": stop_reason(ends[0], model.context),
        },
        "model_info": {
            "arch": facts.architecture,
            "quant": facts.quantization,
            "format": "gguf",
            "context_length": model.context,
        },
        "runtime": {
            "name": f"zinc-{model.llm.backend.name}",
            "version": __version__,
            "supported_formats": ["gguf"],
        },
    }


def stop_reason(end: Ended, context: int) -> str:
    """Return LM Studio's name for the way an answer ended in a context of `context` tokens."""
    if end.reason == "calls":
        return "toolCalls"
    if end.reason == "stop":
        return "eosFound" if end.stop is None else "stopStringFound"
    n_tokens = end.timings.prompt_tokens + end.timings.generated_tokens
    return "contextLengthReached" if n_tokens >= context else "maxPredictedTokensReached"
