"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API; and its form of /v1/models.

https://platform.claude.com/docs/en/api/messages. Requests become OpenAI's shape, which is what chat
templates were written for: tool_result blocks become messages of the role "tool", tool_use blocks
become calls, thinking blocks become `reasoning_content`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from zinc.chat.events import Answer, CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from zinc.server.apis.anthropic.tools import AnthropicTool, functions
from zinc.server.apis.openai.shapes import named_tool, refuse
from zinc.server.apis.shared.chat import ChatAnswer, ChatRequest, Finished, answer_chat, rendered
from zinc.server.apis.shared.fields import (
    Constraint,
    PingInterval,
    QueueFields,
    SamplingFields,
    StopField,
    sampling_params,
)
from zinc.server.apis.shared.service import Service, Shape, account, read_fields
from zinc.server.errors import ApiError, invalid, unsupported
from zinc.server.http.body import Fields, FirstError, parse_json
from zinc.server.http.responses import JSONAnswer, event
from zinc.server.runtime.pool import Entry, LoadedModel

ANTHROPIC = Shape(
    error_event=lambda error: event(error.anthropic(), "error"),
    ping=event({"type": "ping"}, "ping"),
)


class Block(Fields):
    """A block of content; which members it has depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


Blocks = Annotated[list[Block], FirstError()]


class AnthropicMessage(Fields):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Fields):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: str | None = None


class OutputConfig(Fields):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class ContextManagement(Fields):
    edits: Annotated[list[dict[str, Any]], FirstError()] | None = None


class PromptFields(Fields):
    """What makes a prompt; `count_tokens` takes this much."""

    messages: Annotated[list[AnthropicMessage], FirstError()]
    model: str | None = None
    system: str | Blocks | None = None
    tools: Annotated[list[AnthropicTool], FirstError()] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = Field(None, description="prefixes are always cached")
    mcp_servers: list[Any] | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesFields(PromptFields, SamplingFields, QueueFields):
    """A message to be created."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    stop_sequences: StopField = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    diagnostics: dict[str, Any] | None = None
    container: Any = None
    sse_ping_interval: PingInterval = None


_REFUSED: dict[str, tuple[Any, str]] = {
    "mcp_servers": ([], "this server calls no tools itself"),
}
# The edit that changes nothing, which Claude Code asks for.
_KEEP_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
_LEVELS = {"xhigh": "high", "max": "high"}
_TOOL_USE = "toolu_"
_MODELS_A_PAGE, _MAX_MODELS_A_PAGE = 20, 1000


async def create_message(service: Service, request: Request) -> Response:
    fields = await read_fields(service, request, MessagesFields)
    if fields.container is not None:
        raise unsupported("container", "this server runs no code")
    asked = to_request(fields, fields)
    head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}

    async def whole(model: LoadedModel, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        found = await answers[0].collect()
        account(request, [(found.finished.reason, found.finished.timings)])
        return {
            **head,
            "model": model.name,
            "content": _blocks(found.answer),
            **_stop(found.finished),
            "usage": _usage(found.finished),
        }

    async def events(model: LoadedModel, answers: Sequence[ChatAnswer]) -> AsyncGenerator[bytes]:
        usage = {
            "input_tokens": answers[0].generation.n_prompt,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        message: dict[str, Any] = {
            **head,
            "model": model.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
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
            account(request, [(item.reason, item.timings)])
            delta = {"type": "message_delta", "delta": _stop(item), "usage": _usage(item)}
            yield event(delta, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    streamed = events if fields.stream else None
    return await answer_chat(
        service, request, fields.model, asked, whole, streamed, ANTHROPIC, fields.sse_ping_interval
    )


async def count_tokens(service: Service, request: Request) -> Response:
    fields = await read_fields(service, request, PromptFields)
    asked = to_request(fields, None)
    async with service.pool.use(fields.model) as model:
        prompt = await rendered(model, asked)
    return JSONAnswer({"input_tokens": len(prompt.ids)})


async def list_models(service: Service, request: Request) -> Response:
    """List the models in Anthropic's form: a page of them, after or before one of them."""
    query = request.query_params
    names = list(service.pool.entries)
    text = query.get("limit") or str(_MODELS_A_PAGE)
    limit = int(text) if text.isdecimal() and len(text) < 5 else 0
    if not 1 <= limit <= _MAX_MODELS_A_PAGE:
        why = f"it must lie between 1 and {_MAX_MODELS_A_PAGE}"
        raise invalid("limit", f"limit is {text[:20]!r}", why)
    before, after = query.get("before_id"), query.get("after_id")
    for param, name in (("before_id", before), ("after_id", after)):
        if name and name not in names:
            raise invalid(param, f"{param} names no model of this server")
    if before:
        left = names[: names.index(before)]
        page = left[-limit:]
    else:
        left = names[names.index(after) + 1 :] if after else names
        page = left[:limit]
    return JSONAnswer(
        {
            "data": [_model_info(service.pool.entries[name]) for name in page],
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
            "has_more": len(left) > len(page),
        }
    )


async def get_model(service: Service, request: Request) -> Response:
    """Describe one model in Anthropic's form. Raises ApiError 404."""
    return JSONAnswer(_model_info(service.pool.named(request.path_params["name"])))


def _model_info(entry: Entry) -> dict[str, Any]:
    context = None if entry.model is None else entry.model.context
    return {
        "type": "model",
        "id": entry.source.name,
        "display_name": entry.source.name,
        "created_at": datetime.fromtimestamp(entry.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def to_request(fields: PromptFields, sampling: MessagesFields | None) -> ChatRequest:
    """The request in OpenAI's shape. Raises ApiError."""
    refuse(fields, _REFUSED)
    edits = (fields.context_management and fields.context_management.edits) or ()
    if any(edit != _KEEP_THINKING for edit in edits):
        raise unsupported("context_management", "a conversation is taken as it is sent")
    messages: list[dict[str, Any]] = []
    if fields.system:
        messages.append({"role": "system", "content": _texts(fields.system, "system")})
    for i, message in enumerate(fields.messages):
        messages += _messages(message, f"messages[{i}]")
    tools = functions(fields.tools)
    choice = fields.tool_choice
    forced: list[dict[str, Any]] = []
    if choice is not None and choice.type in ("any", "tool"):
        if not tools:
            raise invalid("tool_choice", "tool_choice asks for a call", "there are no tools")
        forced = tools if choice.type == "any" else named_tool(choice.name, tools)
    arguments, budget = _thinking(fields)
    params = sampling_params(
        sampling or SamplingFields(),
        max_tokens=sampling.max_tokens if sampling else None,
        stop=sampling.stop_sequences if sampling else None,
        stop_name="stop_sequences",
    )
    return ChatRequest(
        messages=messages,
        params=params,
        tools=None if choice is not None and choice.type == "none" else tools,
        forced_tools=forced,
        one_call=bool(choice and choice.disable_parallel_tool_use),
        template_args={**arguments, **(fields.chat_template_kwargs or {})},
        constraint=_constraint(fields.output_config),
        thinking_budget=budget,
        priority=(sampling.priority or 0) if sampling else 0,
    )


def _thinking(fields: PromptFields) -> tuple[dict[str, Any], int | None]:
    """Variables for the template, and the budget for the reasoning."""
    arguments: dict[str, Any] = {}
    thinking, config = fields.thinking, fields.output_config
    if thinking is not None:
        arguments["enable_thinking"] = thinking.type != "disabled"
        if thinking.type == "enabled" and thinking.budget_tokens is None:
            raise invalid("thinking.budget_tokens", "thinking.budget_tokens is missing")
    if config is not None and config.effort is not None:
        arguments["reasoning_effort"] = _LEVELS.get(config.effort, config.effort)
    budget = thinking.budget_tokens if thinking and thinking.type == "enabled" else None
    return arguments, budget


def _constraint(config: OutputConfig | None) -> Constraint | None:
    if config is None or config.format is None:
        return None
    if config.format.get("type") != "json_schema" or "schema" not in config.format:
        raise invalid(
            "output_config.format", "output_config.format is not valid", "it must hold a schema"
        )
    return Constraint("json_schema", config.format["schema"], "output_config.format")


def _texts(content: str | Sequence[Block], param: str) -> str:
    if isinstance(content, str):
        return content
    for i, block in enumerate(content):
        if block.type != "text" or block.text is None:
            raise _not_text(block.type, f"{param}[{i}]")
    return "\n".join(block.text or "" for block in content)


def _not_text(kind: str, param: str) -> ApiError:
    return unsupported(param, f"blocks of type {kind[:40]!r} are not understood here", "send text")


def _messages(message: AnthropicMessage, param: str) -> list[dict[str, Any]]:
    """One message may become several: results of tools are messages of their own."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for i, block in enumerate(message.content):
        where = f"{param}.content[{i}]"
        match block.type, message.role:
            case "text", _ if block.text is not None:
                texts.append(block.text)
            case "thinking", "assistant" if block.thinking is not None:
                thoughts.append(block.thinking)
            case "redacted_thinking", "assistant":
                pass  # encrypted by whoever made it; nothing that a model could read
            case "tool_use", "assistant" if block.name and block.input is not None:
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                id = _own_id(block.id)
                calls.append({"id": id, "type": "function", "function": function})
            case "tool_result", "user":
                results.append(_tool_result(block, where))
            case _:
                raise _not_text(block.type, where)
    found = results
    if texts or calls or thoughts or not results:
        row: dict[str, Any] = {"role": message.role, "content": "\n".join(texts)}
        if thoughts:
            row["reasoning_content"] = "\n".join(thoughts)
        if calls:
            row["tool_calls"] = calls
        found = [*results, row]
    return found


def _tool_result(block: Block, where: str) -> dict[str, Any]:
    content = block.content
    if content is None:
        text = ""
    elif isinstance(content, str):
        text = content
    elif isinstance(content, list) and all(
        isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str)
        for p in content
    ):
        text = "\n".join(part["text"] for part in content)
    else:
        raise unsupported(f"{where}.content", "only text can be a result", "send text")
    if block.is_error:
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _own_id(block.tool_use_id), "content": text}


def tool_use_id(id: str) -> str:
    """Return the id of a call as Anthropic's API spells ids."""
    return _TOOL_USE + id.removeprefix("call_")


def _own_id(id: str | None) -> str:
    """Return the id that the model gave to a call; templates may show it to the model again."""
    return (id or "").removeprefix(_TOOL_USE)


def _blocks(found: Answer) -> list[dict[str, Any]]:
    """The content of an answer. The signature of reasoning is empty: nobody has to trust it."""
    blocks: list[dict[str, Any]] = []
    if found.reasoning:
        blocks.append({"type": "thinking", "thinking": found.reasoning, "signature": ""})
    if found.content or not (found.calls or found.reasoning):
        blocks.append({"type": "text", "text": found.content})
    return blocks + [
        {
            "type": "tool_use",
            "id": tool_use_id(call.id),
            "name": call.name,
            "input": _input(call.arguments),
        }
        for call in found.calls
    ]


def _input(arguments: str) -> Mapping[str, Any]:
    """Arguments as an object, as far as they are one: an answer may have been cut off."""
    try:
        value = parse_json(arguments.encode())
    except ApiError:
        return {}
    return value if isinstance(value, dict) else {}


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


class BlockEvents:
    """Turns events of an answer into Anthropic's: blocks that open, grow and close in turn."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: str | None = None

    def push(self, item: Event) -> list[tuple[str, dict[str, Any]]]:
        match item:
            case Content(text):
                opened = self._open("text", {"type": "text", "text": ""})
                return [*opened, self._delta({"type": "text_delta", "text": text})]
            case Reasoning(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                opened = self._open("thinking", empty)
                return [*opened, self._delta({"type": "thinking_delta", "thinking": text})]
            case CallStart(_, id, name):
                block: dict[str, Any] = {
                    "type": "tool_use", "id": tool_use_id(id), "name": name, "input": {}
                }  # fmt: skip
                return [*self._end(), *self._open("tool_use", block)]
            case CallArguments(_, text):
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case CallEnd():
                return self._end()

    def close(self) -> list[tuple[str, dict[str, Any]]]:
        """The end of the last block; an answer has at least one, if an empty one."""
        opened = self._open("text", {"type": "text", "text": ""}) if self._index < 0 else []
        return [*opened, *self._end()]

    def _open(self, kind: str, block: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        if self._kind == kind:
            return []
        ended = self._end()
        self._index += 1
        self._kind = kind
        data = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*ended, ("content_block_start", data)]

    def _end(self) -> list[tuple[str, dict[str, Any]]]:
        if self._kind is None:
            return []
        self._kind = None
        data = {"type": "content_block_stop", "index": self._index}
        return [("content_block_stop", data)]

    def _delta(self, delta: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        data = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return ("content_block_delta", data)
