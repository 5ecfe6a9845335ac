"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API.

https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.server.apis.anthropic.blocks import BlockEvents, content_blocks
from zinc.server.apis.anthropic.fields import MessagesFields, PromptFields
from zinc.server.apis.anthropic.request import to_request
from zinc.server.apis.shared.chat.answer import ChatAnswer, Finished
from zinc.server.apis.shared.chat.start import answer_chat, count_prompt_tokens
from zinc.server.apis.shared.service import Service, StreamEvents, read_fields, record_answers
from zinc.server.errors import unsupported
from zinc.server.http.responses import JSONResponse, event
from zinc.server.runtime.served_model import ServedModel

ANTHROPIC = StreamEvents(
    error_event=lambda error: event(error.anthropic(), "error"),
    ping=event({"type": "ping"}, "ping"),
)


async def create_message(service: Service, request: Request) -> Response:
    """Answer a conversation with a message."""
    fields = await read_fields(service, request, MessagesFields)
    if fields.container is not None:
        raise unsupported("container", "the server runs no code")
    reply = _Reply(request)
    return await answer_chat(
        service,
        request,
        fields.model,
        to_request(fields, fields),
        reply.whole,
        reply.events if fields.stream else None,
        ANTHROPIC,
        fields.sse_ping_interval,
    )


class _Reply:
    """The reply to a request for a message, whole or streamed."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}

    async def whole(self, model: ServedModel, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Return the message, once the answer has ended."""
        found = await answers[0].collect()
        self._record(found.finished)
        return {
            **self._head,
            "model": model.name,
            "content": content_blocks(found.answer),
            **_stop(found.finished),
            "usage": _usage(found.finished),
        }

    async def events(
        self, model: ServedModel, answers: Sequence[ChatAnswer]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of the stream."""
        message = self._begun(model, answers[0].generation.n_prompt)
        yield event({"type": "message_start", "message": message}, "message_start")
        yield ANTHROPIC.ping
        blocks = BlockEvents()
        async for item in answers[0]:
            if not isinstance(item, Finished):
                for name, data in blocks.push(item.event):
                    yield event(data, name)
                continue
            for name, data in blocks.close():
                yield event(data, name)
            self._record(item)
            delta = {"type": "message_delta", "delta": _stop(item), "usage": _usage(item)}
            yield event(delta, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def _begun(self, model: ServedModel, n_prompt: int) -> dict[str, Any]:
        """Return the message before its first block. n_prompt: tokens of the prompt."""
        return {
            **self._head,
            "model": model.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": n_prompt,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        }

    def _record(self, end: Finished) -> None:
        record_answers(self._request, [(end.reason, end.timings)])


async def count_tokens(service: Service, request: Request) -> Response:
    """Answer with the number of prompt tokens of a conversation."""
    fields = await read_fields(service, request, PromptFields)
    n_tokens = await count_prompt_tokens(service, fields.model, to_request(fields, None))
    return JSONResponse({"input_tokens": n_tokens})


def _stop(end: Finished) -> dict[str, Any]:
    reasons = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use"}
    reason = "stop_sequence" if end.stop is not None else reasons[end.reason]
    return {"stop_reason": reason, "stop_sequence": end.stop}


def _usage(end: Finished) -> dict[str, Any]:
    t = end.timings
    return {
        "input_tokens": t.prompt_tokens - t.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": t.cached_tokens,
        "output_tokens": t.generated_tokens,
    }
