"""/v1/responses: create, count, get, delete and cancel responses.

https://platform.openai.com/docs/api-reference/responses. `OutputItems` turns every answer into both
the events of a stream and the final response object.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from zinc.server.apis.openai.responses.fields import ResponseFields
from zinc.server.apis.openai.responses.output import Data, OutputItems, Replay
from zinc.server.apis.openai.responses.request import input_items, item_messages, to_request
from zinc.server.apis.openai.responses.tools import ResponseTools
from zinc.server.apis.openai.usage import Usage, progress_members, timings_member
from zinc.server.apis.shared.chat.answer import ChatAnswer, Finished, Piece
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.chat.start import answer_chat, count_prompt_tokens
from zinc.server.apis.shared.service import (
    Service,
    StreamEvents,
    owner_of,
    read_fields,
    record_answers,
)
from zinc.server.errors import ApiError, invalid
from zinc.server.http.responses import JSONResponse, event
from zinc.server.runtime.served_model import ServedModel


def _error_event(error: ApiError) -> bytes:
    data = {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "sequence_number": 0,
    }
    return event(data, "error")


RESPONSES = StreamEvents(error_event=_error_event)


async def create_response(service: Service, request: Request) -> Response:
    """Answer a conversation with a response, and store it unless `store` is false."""
    fields = await read_fields(service, request, ResponseFields)
    items = input_items(fields.input)
    conversation = [*_previous(service, request, fields), *item_messages(items)]
    tools = ResponseTools(fields.tools)
    chat_request = to_request(fields, conversation, tools)
    reply = _Reply(service, request, fields, chat_request, tools, items, conversation)
    return await answer_chat(
        service,
        request,
        fields.model,
        chat_request,
        reply.whole,
        reply.events if fields.stream else None,
        RESPONSES,
        fields.sse_ping_interval,
    )


class _Reply:
    """The reply to a request, whole or streamed, which is stored when it is complete.

    items: the input items of the request. conversation: the messages that it answers.
    """

    def __init__(
        self,
        service: Service,
        request: Request,
        fields: ResponseFields,
        chat_request: ChatRequest,
        tools: ResponseTools,
        items: list[dict[str, Any]],
        conversation: list[dict[str, Any]],
    ) -> None:
        self._service, self._request, self._fields = service, request, fields
        self._chat_request, self._tools = chat_request, tools
        self._items, self._conversation = items, conversation
        self._shared = _shared(fields, chat_request, tools)

    async def whole(self, model: ServedModel, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Return the body of the response, once the answer has ended."""
        output = self._output(model)
        async for item in answers[0]:
            if isinstance(item, Finished):
                output.close(item.reason == "length")
                return self._finish(output, item)
            output.push(item)
        raise RuntimeError("the answer has no end")

    async def events(
        self, model: ServedModel, answers: Sequence[ChatAnswer]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of the stream."""
        output = self._output(model)
        for data in output.begin():
            yield event(data, data["type"])
        async for item in answers[0]:
            if not isinstance(item, Finished):
                for data in _piece_events(output, item, self._fields.timings_per_token):
                    yield event(data, data["type"])
                continue
            cut = item.reason == "length"
            for data in output.close(cut):
                yield event(data, data["type"])
            last = output.last("incomplete" if cut else "completed", self._finish(output, item))
            yield event(last, last["type"])

    def _output(self, model: ServedModel) -> OutputItems:
        logprobs = self._chat_request.params.logprobs is not None
        shared = {**self._shared, "model": model.name}
        return OutputItems(shared, model.tokenizer, logprobs, self._tools)

    def _finish(self, output: OutputItems, end: Finished) -> dict[str, Any]:
        """Return the response object. Record the answer, and store it unless `store` is false."""
        record_answers(self._request, [(end.reason, end.timings)])
        whole = output.response(_usage(end), end.reason == "length")
        if self._fields.store is not False:
            messages = [*self._conversation, *item_messages(output.items)]
            owner = owner_of(self._service, self._request)
            self._service.store.put(whole, self._items, messages, owner)
        return whole


def _piece_events(output: OutputItems, piece: Piece, with_timings: bool | None) -> list[Data]:
    """Return the events of a piece, with timings and progress as in llama.cpp's server."""
    if piece.progress is not None:
        return [output.in_progress() | progress_members(piece.progress, with_timings)]
    return [data | timings_member(piece.timings) for data in output.push(piece)]


async def count_tokens(service: Service, request: Request) -> Response:
    """Answer with the number of prompt tokens of a response."""
    fields = await read_fields(service, request, ResponseFields)
    messages = [*_previous(service, request, fields), *item_messages(input_items(fields.input))]
    chat_request = to_request(fields, messages, ResponseTools(fields.tools))
    n_tokens = await count_prompt_tokens(service, fields.model, chat_request)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": n_tokens})


def _previous(service: Service, request: Request, fields: ResponseFields) -> list[dict[str, Any]]:
    """Return the conversation of the previous response that a request continues."""
    if fields.previous_response_id is None:
        return []
    owner = owner_of(service, request)
    return service.store.get(fields.previous_response_id, owner, "previous_response_id").messages


async def get_response(service: Service, request: Request) -> Response:
    """Answer with a stored response, or with `stream=true` as its events.

    `starting_after` skips the events up to that sequence number.
    """
    id, owner = request.path_params["id"], owner_of(service, request)
    found = service.store.get(id, owner).response
    query = request.query_params
    if query.get("stream", "false").lower() != "true":
        return JSONResponse(found)
    after = query.get("starting_after", "-1")
    if not after.removeprefix("-").isdecimal() or len(after) > 18:
        raise invalid("starting_after", "starting_after is not valid", "it must be a whole number")
    events = [
        event(data, data["type"])
        for data in Replay(found).events()
        if data["sequence_number"] > int(after)
    ]
    return Response(b"".join(events), media_type="text/event-stream")


async def delete_response(service: Service, request: Request) -> Response:
    """Delete a stored response. Raises ApiError 404."""
    id = request.path_params["id"]
    service.store.delete(id, owner_of(service, request))
    return JSONResponse({"id": id, "object": "response", "deleted": True})


async def cancel_response(service: Service, request: Request) -> Response:
    """Refuse to cancel a response: only background responses can be cancelled, and there are none.

    Raises ApiError: 404 for an unknown response, else 400.
    """
    service.store.get(request.path_params["id"], owner_of(service, request))
    raise ApiError(
        400,
        "the response cannot be cancelled",
        "it is complete; there are no background responses",
        "close the connection to end an answer early",
        code="invalid_value",
        param="id",
    )


async def get_input_items(service: Service, request: Request) -> Response:
    """Answer with the input items of a stored response. Raises ApiError 404."""
    items = service.store.get(request.path_params["id"], owner_of(service, request)).input
    ids = [str(item.get("id", "")) for item in items]
    return JSONResponse(
        {
            "object": "list",
            "data": items,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": False,
        }
    )


def _shared(
    fields: ResponseFields, chat_request: ChatRequest, tools: ResponseTools
) -> dict[str, Any]:
    """Return the members of the response object that are known before the answer."""
    given = fields.text.format if fields.text else None
    format = {"type": "text"} if given is None else given.model_dump(exclude_unset=True)
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "background": False,
        "error": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {
            "effort": fields.reasoning.effort if fields.reasoning else None,
            "summary": None,
        },
        "store": fields.store is not False,
        "temperature": chat_request.params.temperature,
        "text": {"format": format, "verbosity": fields.verbosity or "medium"},
        "tool_choice": fields.tool_choice or "auto",
        "tools": tools.offered,
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": chat_request.params.top_p,
        "truncation": fields.truncation or "disabled",
        "user": fields.user,
    }


def _usage(end: Finished) -> dict[str, Any]:
    usage = Usage.of([end.timings], end.reasoning_tokens)
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
