"""POST /api/generate: continue a prompt, with the chat template or raw, or fill a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.chat.events import Content, Reasoning
from zinc.core.dataclass import dataclass
from zinc.engine.sampling import Sampled, SamplingParams
from zinc.server.apis.ollama.common import (
    OLLAMA,
    Clock,
    GenerationFields,
    constraint_in,
    keep_alive_seconds,
    line,
    own_name,
    params_of,
    refuse_images,
    timestamp,
)
from zinc.server.apis.ollama.keep_alive import keep, load_or_unload
from zinc.server.apis.openai.chat_request import template_arguments
from zinc.server.apis.openai.completions import jobs_of
from zinc.server.apis.openai.usage import chat_logprobs
from zinc.server.apis.shared.chat.answer import ChatAnswer, Finished
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.chat.start import answer_chat
from zinc.server.apis.shared.fields import Tokens, refuse
from zinc.server.apis.shared.service import Service, answer, client_of, read_fields, record_answers
from zinc.server.apis.shared.text import plain_text
from zinc.server.http.responses import JSONResponse
from zinc.server.runtime.job import NO_TELEMETRY, End
from zinc.server.runtime.runner import Generation
from zinc.server.runtime.served_model import ServedModel


class GenerateFields(GenerationFields):
    """A request to continue a prompt. Without one, the model is only loaded."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[Any] | None = None
    template: str | None = None
    context: Tokens | None = None


_REFUSED: dict[str, tuple[Any, str]] = {
    "template": ("", "the template comes from the model's file or from --chat-template"),
    "context": ([], "conversations are continued with /api/chat"),
}


async def generate(service: Service, request: Request) -> Response:
    """Continue a prompt."""
    fields = await read_fields(service, request, GenerateFields)
    refuse(fields, _REFUSED)
    refuse_images(fields.images, "images")
    clock, seconds = Clock(), keep_alive_seconds(fields.keep_alive)
    name = own_name(service.pool, fields.model)
    if not fields.prompt and not fields.suffix:
        reason = await load_or_unload(service, name, seconds)
        end = {"created_at": timestamp(), "response": "", "done_reason": reason, "done": True}
        return JSONResponse({"model": fields.model, **end})
    reply = _Reply(service, request, fields, params_of(fields), clock, seconds)
    is_streamed = fields.stream is not False
    if fields.raw or fields.suffix:
        lines = reply.raw_lines if is_streamed else None
        return await answer(
            service, request, name, reply.begin_raw, reply.whole_raw, lines, OLLAMA, 0
        )
    chat = replace(_to_chat(fields), params=reply.params)
    chat_lines = reply.chat_lines if is_streamed else None
    return await answer_chat(service, request, name, chat, reply.whole_chat, chat_lines, OLLAMA, 0)


@dataclass(frozen=True, slots=True)
class _Reply:
    """The response to a request: one row, or a row for each piece of a streamed answer.

    keep_alive_s: seconds for which the model stays loaded.
    """

    service: Service
    request: Request
    fields: GenerateFields
    params: SamplingParams
    clock: Clock
    keep_alive_s: float | None

    def row(
        self, model: ServedModel, text: str, thinking: str = "", tokens: Sequence[Sampled] = ()
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"model": model.name, "created_at": timestamp(), "response": text}
        if thinking:
            found["thinking"] = thinking
        if tokens and self.params.logprobs is not None:
            found["logprobs"] = chat_logprobs(model.tokenizer, tokens)
        return found

    def end(self, model: ServedModel, end: Finished | End) -> dict[str, Any]:
        """Return what the last row has besides, and record the end of the answer."""
        record_answers(self.request, [(end.reason, end.timings)])
        keep(self.service, model, self.keep_alive_s)
        reason = "length" if end.reason == "length" else "stop"
        return {"done": True, "done_reason": reason, **self.clock.durations(end.timings)}

    async def whole_chat(self, model: ServedModel, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        self.clock.loaded()
        found = await answers[0].collect()
        text, thinking = found.answer.content, found.answer.reasoning
        return self.row(model, text, thinking, found.tokens) | self.end(model, found.finished)

    async def chat_lines(
        self, model: ServedModel, answers: Sequence[ChatAnswer]
    ) -> AsyncGenerator[bytes]:
        self.clock.loaded()
        async for item in answers[0]:
            if isinstance(item, Finished):
                yield line(self.row(model, "") | self.end(model, item))
            elif isinstance(item.event, Content) and item.event.text:
                found = self.row(model, item.event.text, tokens=item.tokens)
                yield line({**found, "done": False})
            elif isinstance(item.event, Reasoning):
                yield line({**self.row(model, "", item.event.text), "done": False})

    async def begin_raw(self, model: ServedModel) -> list[Generation]:
        self.clock.loaded()
        fields = self.fields
        jobs = await asyncio.to_thread(
            jobs_of, model, [fields.prompt or ""], self.params, 1, constraint_in(fields), False,
            fields.priority or 0, NO_TELEMETRY, fields.suffix or "",
        )  # fmt: skip
        return model.runner.submit(jobs, client_of(self.service, self.request))

    async def whole_raw(self, model: ServedModel, answers: Sequence[Generation]) -> dict[str, Any]:
        text, tokens = "", list[Sampled]()
        async for item in plain_text(answers[0]):
            if isinstance(item, End):
                return self.row(model, text, tokens=tokens) | self.end(model, item)
            text, tokens = text + item.text, [*tokens, *item.tokens]
        raise RuntimeError("the answer has no end")

    async def raw_lines(
        self, model: ServedModel, answers: Sequence[Generation]
    ) -> AsyncGenerator[bytes]:
        async for item in plain_text(answers[0]):
            if isinstance(item, End):
                yield line(self.row(model, "") | self.end(model, item))
            elif item.text:
                yield line({**self.row(model, item.text, tokens=item.tokens), "done": False})


def _to_chat(fields: GenerateFields) -> ChatRequest:
    """Return the prompt as a conversation of one turn. Raises ApiError."""
    messages = [{"role": "system", "content": fields.system}] if fields.system else []
    return ChatRequest(
        messages=[*messages, {"role": "user", "content": fields.prompt or ""}],
        params=params_of(fields),
        priority=fields.priority or 0,
        template_args=template_arguments(fields),
        constraint=constraint_in(fields),
        thinking_budget=fields.thinking_budget,
        param="prompt",
    )
