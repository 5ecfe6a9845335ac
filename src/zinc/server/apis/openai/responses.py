"""/v1/responses: OpenAI's newer API, in which an answer is a list of items.

https://platform.openai.com/docs/api-reference/responses. Items become messages of the chat API on
the way in. Streamed or not, an answer goes through `OutputItems`, which makes both the events and
the final object.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.server.apis.openai.chat import Effort, ThinkingFields, Verbosity, template_arguments
from zinc.server.apis.openai.response_items import Data, OutputItems, Replay
from zinc.server.apis.openai.response_tools import (
    ResponseTool,
    ResponseTools,
    function_name,
    text_arguments,
)
from zinc.server.apis.openai.shapes import (
    NeutralFields,
    StreamOptions,
    Usage,
    progress_members,
    timings_member,
    tool_use,
)
from zinc.server.apis.shared.chat.answer import ChatAnswer, Finished, Piece
from zinc.server.apis.shared.chat.prompt import prompt_of
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.chat.start import answer_chat
from zinc.server.apis.shared.fields import (
    MAX_TOP_LOGPROBS,
    Constraint,
    ConstraintFields,
    LlamaFields,
    QueueFields,
    StopField,
    Strings,
    constraint_of,
    refuse,
    sampling_params,
    telemetry_of,
)
from zinc.server.apis.shared.service import Service, Shape, account, owner_of, read_fields
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.http.body import Fields, FirstError
from zinc.server.http.responses import JSONAnswer, event
from zinc.server.runtime.loaded_model import LoadedModel

LOGPROBS = "message.output_text.logprobs"


def _error_event(error: ApiError) -> bytes:
    data = {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "sequence_number": 0,
    }
    return event(data, "error")


RESPONSES = Shape(error_event=_error_event)


class Reasoning(Fields):
    """OpenAI's `reasoning`, with the members that OpenRouter adds."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: int | None = Field(None, ge=0, description="tokens of reasoning at most")
    summary: str | None = None
    generate_summary: str | None = None


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    schema_: Any = Field(None, alias="schema")


class TextConfig(Fields):
    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ResponseFields(ThinkingFields, ConstraintFields, LlamaFields, NeutralFields, QueueFields):
    """A response."""

    input: str | Annotated[list[dict[str, Any]], FirstError()]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: Annotated[list[ResponseTool], FirstError()] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    include: Strings | None = None
    truncation: str | None = None
    max_tool_calls: int | None = Field(None, description="bounds tools that run here: none do")
    stop: StopField = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: list[Any] | None = None
    moderation: dict[str, Any] | None = None
    image: dict[str, Any] | None = None


_REFUSED: dict[str, tuple[Any, str]] = {
    "background": (False, "responses are made while the client waits"),
    "conversation": (None, "conversations are not kept; previous_response_id is"),
    "prompt": (None, "this server keeps no prompt templates"),
    "context_management": ([], "a conversation is taken as it is sent"),
    "moderation": (None, "this server moderates nothing"),
    "image": (None, "only text can be generated"),
    "reasoning_format": ("auto", "reasoning comes in items of its own"),
}
# Reasoning is sent in the clear, so there is nothing that would have to be included encrypted.
_INCLUDES = (LOGPROBS, "reasoning.encrypted_content")


async def create_response(service: Service, request: Request) -> Response:
    fields = await read_fields(service, request, ResponseFields)
    items = input_items(fields.input)
    conversation = [*_previous(service, request, fields), *item_messages(items)]
    tools = ResponseTools(fields.tools)
    asked = to_request(fields, conversation, tools)
    shared = _shared(fields, asked, tools)

    def finish(output: OutputItems, end: Finished) -> dict[str, Any]:
        account(request, [(end.reason, end.timings)])
        whole = output.response(_usage(end), end.reason == "length")
        if fields.store is not False:
            messages = [*conversation, *item_messages(output.items)]
            service.store.put(whole, items, messages, owner_of(service, request))
        return whole

    def output_of(model: LoadedModel) -> OutputItems:
        logprobs = asked.params.logprobs is not None
        return OutputItems({**shared, "model": model.name}, model.tokenizer, logprobs, tools)

    async def whole(model: LoadedModel, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        output = output_of(model)
        async for item in answers[0]:
            if isinstance(item, Finished):
                output.close(item.reason == "length")
                return finish(output, item)
            output.push(item)
        raise RuntimeError("the answer has no end")

    async def events(model: LoadedModel, answers: Sequence[ChatAnswer]) -> AsyncGenerator[bytes]:
        output = output_of(model)
        for data in output.begin():
            yield event(data, data["type"])
        async for item in answers[0]:
            if not isinstance(item, Finished):
                for data in _told(output, item, fields.timings_per_token):
                    yield event(data, data["type"])
                continue
            cut = item.reason == "length"
            for data in output.close(cut):
                yield event(data, data["type"])
            last = output.last("incomplete" if cut else "completed", finish(output, item))
            yield event(last, last["type"])

    streamed = events if fields.stream else None
    return await answer_chat(
        service, request, fields.model, asked, whole, streamed, RESPONSES, fields.sse_ping_interval
    )


def _told(output: OutputItems, piece: Piece, with_timings: bool | None) -> list[Data]:
    """The events of a piece; llama.cpp's server adds timings and progress to them."""
    if piece.progress is not None:
        return [output.in_progress() | progress_members(piece.progress, with_timings)]
    return [data | timings_member(piece.timings) for data in output.push(piece)]


async def count_tokens(service: Service, request: Request) -> Response:
    """How long the prompt of a response would be."""
    fields = await read_fields(service, request, ResponseFields)
    messages = [*_previous(service, request, fields), *item_messages(input_items(fields.input))]
    asked = to_request(fields, messages, ResponseTools(fields.tools))
    async with service.pool.use(fields.model) as model:
        prompt = await prompt_of(model, asked)
    return JSONAnswer({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})


def _previous(service: Service, request: Request, fields: ResponseFields) -> list[dict[str, Any]]:
    """The conversation that a response goes on with."""
    if fields.previous_response_id is None:
        return []
    owner = owner_of(service, request)
    return service.store.get(fields.previous_response_id, owner, "previous_response_id").messages


async def get_response(service: Service, request: Request) -> Response:
    """Return a stored response; with `stream=true` its events, after number `starting_after`."""
    id, owner = request.path_params["id"], owner_of(service, request)
    found = service.store.get(id, owner).response
    query = request.query_params
    if query.get("stream", "false").lower() != "true":
        return JSONAnswer(found)
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
    id = request.path_params["id"]
    service.store.delete(id, owner_of(service, request))
    return JSONAnswer({"id": id, "object": "response", "deleted": True})


async def cancel_response(service: Service, request: Request) -> Response:
    """Refuse, as OpenAI does for a response that was not made in the background.

    Raises ApiError: 404 for an unknown response, else 400.
    """
    service.store.get(request.path_params["id"], owner_of(service, request))
    raise ApiError(
        400,
        "the response cannot be cancelled",
        "it was made while the client waited, and is complete",
        "close the connection to end an answer early",
        code="invalid_value",
        param="id",
    )


async def get_input_items(service: Service, request: Request) -> Response:
    items = service.store.get(request.path_params["id"], owner_of(service, request)).input
    ids = [str(item.get("id", "")) for item in items]
    return JSONAnswer(
        {
            "object": "list",
            "data": items,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": False,
        }
    )


def to_request(
    fields: ResponseFields, messages: Sequence[Mapping[str, Any]], tools: ResponseTools
) -> ChatRequest:
    """Return what the engine is asked. Raises ApiError."""
    refuse(fields, _REFUSED)
    if fields.truncation not in (None, "auto", "disabled"):
        raise invalid("truncation", "truncation is not valid", "it is auto or disabled")
    if fields.reasoning is not None:
        given = fields.reasoning
        fields.reasoning_effort = given.effort or fields.reasoning_effort
        if given.enabled is not None:
            fields.enable_thinking = given.enabled
        if given.max_tokens is not None:
            fields.thinking_budget = given.max_tokens
    if fields.text is not None and fields.text.verbosity is not None:
        fields.verbosity = fields.text.verbosity
    for name in fields.include or []:
        if name not in _INCLUDES:
            raise unsupported("include", f"{name[:60]!r} is nothing that this server has")
    with_logprobs = bool(fields.top_logprobs) or LOGPROBS in (fields.include or [])
    params = sampling_params(
        fields,
        max_tokens=fields.max_output_tokens,
        max_tokens_name="max_output_tokens",
        stop=fields.stop,
        logprobs=(fields.top_logprobs or 0) if with_logprobs else None,
    )
    system = [{"role": "system", "content": fields.instructions}] if fields.instructions else []
    use = tool_use(fields.tool_choice, tools.functions or None)
    return ChatRequest(
        messages=[*system, *messages],
        params=params,
        tools=use.tools,
        forced_tools=use.forced,
        one_call=fields.parallel_tool_calls is False,
        priority=fields.priority or 0,
        telemetry=telemetry_of(fields, fields.stream),
        template_args=template_arguments(fields),
        constraint=_constraint(fields),
        thinking_budget=fields.thinking_budget,
        truncate=fields.truncation == "auto",
        param="input",
    )


def _constraint(fields: ResponseFields) -> Constraint | None:
    given = fields.text.format if fields.text else None
    if given is None or given.type == "text":
        return constraint_of(None, fields)
    if given.type == "json_schema" and given.schema_ is None:
        raise invalid("text.format.schema", "text.format.schema is missing")
    return Constraint(given.type, given.schema_, "text.format")


def input_items(given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The input as items, each with a type and an id. Raises ApiError."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given:
        raise invalid("input", "input is empty", "there is nothing to answer")
    items = []
    for i, item in enumerate(given):
        where = f"input[{i}]"
        kind = item.get("type", "message")
        check = _CHECKS.get(kind) if isinstance(kind, str) else None
        if check is None:
            raise unsupported(where, f"items of type {str(kind)[:40]!r} are not understood")
        for name, types in check.items():
            if not isinstance(item.get(name), types):
                raise invalid(f"{where}.{name}", f"{where}.{name} is missing or not valid")
        items.append({"id": f"item_{uuid.uuid4().hex}", **item, "type": kind})
    return items


_CHECKS: dict[str, dict[str, tuple[type, ...]]] = {
    "message": {"role": (str,), "content": (str, list)},
    "function_call": {"call_id": (str,), "name": (str,), "arguments": (str,)},
    "function_call_output": {"call_id": (str,), "output": (str, list)},
    "custom_tool_call": {"call_id": (str,), "name": (str,), "input": (str,)},
    "custom_tool_call_output": {"call_id": (str,), "output": (str, list)},
    "reasoning": {"summary": (list, type(None))},
}


def item_messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Items as messages of the chat API; what one turn of the assistant made is one message."""
    messages: list[dict[str, Any]] = []
    thoughts = ""
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            thoughts += "".join(str(p.get("text", "")) for p in parts if isinstance(p, dict))
            continue
        if kind in ("function_call_output", "custom_tool_call_output"):
            row = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            messages.append(row)
            continue
        if kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": item["content"]})
            continue
        last: dict[str, Any] = messages[-1] if messages and not thoughts else {"role": ""}
        if kind == "message":
            last = {"role": "assistant", "content": item["content"]}
            messages.append(last)
        elif last["role"] != "assistant":
            last = {"role": "assistant", "content": ""}
            messages.append(last)
        if kind in ("function_call", "custom_tool_call"):
            is_text = kind == "custom_tool_call"
            arguments = text_arguments(item["input"]) if is_text else item["arguments"]
            function = {"name": function_name(item), "arguments": arguments}
            call = {"id": item["call_id"], "type": "function", "function": function}
            last.setdefault("tool_calls", []).append(call)
        if thoughts:
            last["reasoning_content"], thoughts = thoughts, ""
    return messages


def _shared(fields: ResponseFields, asked: ChatRequest, tools: ResponseTools) -> dict[str, Any]:
    """The members of the response object that are known before the answer."""
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
        "temperature": asked.params.temperature,
        "text": {"format": format, "verbosity": fields.verbosity or "medium"},
        "tool_choice": fields.tool_choice or "auto",
        "tools": tools.offered,
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": asked.params.top_p,
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
