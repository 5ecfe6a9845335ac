"""POST /api/chat: continue a conversation, as a stream of JSON lines or as a whole."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.chat.events import Answer, CallArguments, CallEnd, CallStart, Content, Reasoning
from zinc.engine.sampling import Sampled
from zinc.server.apis.ollama.common import (
    OLLAMA,
    Clock,
    GenerationFields,
    constraint_in,
    keep_alive_seconds,
    line,
    own_name,
    params_of,
    timestamp,
)
from zinc.server.apis.ollama.keep_alive import keep, load_or_unload
from zinc.server.apis.ollama.messages import Messages, plain_messages
from zinc.server.apis.openai.chat_request import template_arguments
from zinc.server.apis.openai.tools import Tool, plain_tools
from zinc.server.apis.openai.usage import chat_logprobs
from zinc.server.apis.shared.chat.answer import ChatAnswer, Finished, Piece
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.chat.start import answer_chat
from zinc.server.apis.shared.service import Service, read_fields, record_answers
from zinc.server.http.fields import FirstError
from zinc.server.http.responses import JSONResponse
from zinc.server.runtime.served_model import ServedModel

FINISH = {"stop": "stop", "length": "length", "calls": "stop"}


class OllamaChatFields(GenerationFields):
    """A request to continue a conversation. Without messages, the model is only loaded."""

    messages: Messages | None = None
    tools: Annotated[list[Tool], FirstError()] | None = None


async def chat(service: Service, request: Request) -> Response:
    """Continue a conversation."""
    fields = await read_fields(service, request, OllamaChatFields)
    clock, seconds = Clock(), keep_alive_seconds(fields.keep_alive)
    name = own_name(service.pool, fields.model)
    if not fields.messages:
        reason = await load_or_unload(service, name, seconds)
        empty = {"role": "assistant", "content": ""}
        end = {"created_at": timestamp(), "message": empty, "done_reason": reason, "done": True}
        return JSONResponse({"model": fields.model, **end})
    chat_request = to_request(fields)

    async def whole(model: ServedModel, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        clock.loaded()
        reply = Reply(model, chat_request)
        found = await answers[0].collect()
        record_answers(request, [(found.finished.reason, found.finished.timings)])
        message = whole_message(found.answer, found.finished.reason)
        keep(service, model, seconds)
        return reply.row(message, found.tokens) | reply.end(found.finished, clock)

    async def lines(model: ServedModel, answers: Sequence[ChatAnswer]) -> AsyncGenerator[bytes]:
        clock.loaded()
        reply = Reply(model, chat_request)
        async for item in answers[0]:
            if isinstance(item, Finished):
                record_answers(request, [(item.reason, item.timings)])
                keep(service, model, seconds)
                last = {"role": "assistant", "content": reply.unparsed(item.reason)}
                yield line(reply.row(last) | reply.end(item, clock))
            elif (message := reply.message(item)) is not None:
                yield line({**reply.row(message, item.tokens), "done": False})

    streamed = None if fields.stream is False else lines
    return await answer_chat(service, request, name, chat_request, whole, streamed, OLLAMA, 0)


def to_request(fields: OllamaChatFields) -> ChatRequest:
    """Return the request as a `ChatRequest`. Raises ApiError."""
    return ChatRequest(
        messages=plain_messages(fields.messages or ()),
        params=params_of(fields),
        tools=plain_tools(fields.tools),
        priority=fields.priority or 0,
        template_args=template_arguments(fields),
        constraint=constraint_in(fields),
        thinking_budget=fields.thinking_budget,
    )


def whole_message(answer: Answer, reason: str) -> dict[str, Any]:
    """Return a whole answer as a message. reason: why it ended."""
    broken = [call.source for call in answer.calls if not call.complete]
    content = answer.content + unparsed_text(broken, reason)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if answer.reasoning:
        message["thinking"] = answer.reasoning
    complete = [call for call in answer.calls if call.complete]
    if complete:
        message["tool_calls"] = [
            tool_call(i, call.name, call.arguments) for i, call in enumerate(complete)
        ]
    return message


def unparsed_text(calls: Sequence[str], reason: str) -> str:
    """Return the text of calls that are not valid, which becomes content.

    A call that the token limit cuts off is left out, as in Ollama; `done_reason` tells.
    """
    return "" if reason == "length" else "\n".join(calls)


class Reply:
    """Builder of the rows of an answer. Calls are sent whole, when their arguments are complete."""

    def __init__(self, model: ServedModel, chat_request: ChatRequest) -> None:
        self._model, self._asked = model, chat_request
        self._calls: dict[int, tuple[str, str]] = {}  # name and arguments so far
        self._n_sent = 0
        self._broken: list[str] = []

    def row(self, message: dict[str, Any], tokens: Sequence[Sampled] = ()) -> dict[str, Any]:
        """Return a row with `message`, and the log-probabilities of `tokens` if requested."""
        row: dict[str, Any] = {"model": self._model.name, "created_at": timestamp()}
        row["message"] = message
        if tokens and self._asked.params.logprobs is not None:
            row["logprobs"] = chat_logprobs(self._model.tokenizer, tokens)
        return row

    def end(self, finished: Finished, clock: Clock) -> dict[str, Any]:
        """Return the members of the last row."""
        end = {"done_reason": FINISH[finished.reason], "done": True}
        return end | clock.durations(finished.timings)

    def message(self, piece: Piece) -> dict[str, Any] | None:
        """Return the message of a row for `piece`, or None if it has none yet."""
        match piece.event:
            case Content(text) if text:
                return {"role": "assistant", "content": text}
            case Reasoning(text):
                return {"role": "assistant", "content": "", "thinking": text}
            case CallStart(index, _, name):
                self._calls[index] = (name, "")
            case CallArguments(index, text):
                name, arguments = self._calls[index]
                self._calls[index] = (name, arguments + text)
            case CallEnd(index, True):
                call = tool_call(self._n_sent, *self._calls.pop(index))
                self._n_sent += 1
                return {"role": "assistant", "content": "", "tool_calls": [call]}
            case CallEnd(_, False, source):
                self._broken.append(source)
        return None

    def unparsed(self, reason: str) -> str:
        """Return the content of the last row (see `unparsed_text`)."""
        return unparsed_text(self._broken, reason)


def tool_call(index: int, name: str, arguments: str) -> dict[str, Any]:
    """Return a complete call in Ollama's form."""
    value = json.loads(arguments or "{}")
    return {"function": {"index": index, "name": name, "arguments": value}}
