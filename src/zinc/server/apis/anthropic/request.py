"""Requests of /v1/messages as chat requests, in the form that chat templates expect.

A tool_result block becomes a message with the role "tool", a tool_use block a call, and a thinking
block `reasoning_content`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from zinc.server.apis.anthropic.fields import (
    AnthropicMessage,
    Block,
    MessagesFields,
    OutputConfig,
    PromptFields,
)
from zinc.server.apis.anthropic.tools import functions
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.fields import (
    Constraint,
    SamplingFields,
    refuse,
    sampling_params,
)
from zinc.server.apis.shared.tools import named_tool
from zinc.server.errors import ApiError, invalid, unsupported

_REFUSED: dict[str, tuple[Any, str]] = {
    "mcp_servers": ([], "the server calls no tools"),
}
# Claude Code asks for this edit, which changes nothing.
_KEEP_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
_LEVELS = {"xhigh": "high", "max": "high"}
_TOOL_USE = "toolu_"


def to_request(fields: PromptFields, sampling: MessagesFields | None) -> ChatRequest:
    """Return the request as a `ChatRequest`. Raises ApiError.

    sampling: the same fields, or None for a request that only counts tokens.
    """
    refuse(fields, _REFUSED)
    edits = (fields.context_management and fields.context_management.edits) or ()
    if any(edit != _KEEP_THINKING for edit in edits):
        raise unsupported("context_management", "conversations are not edited")
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
            raise invalid("tool_choice", "tool_choice requires a call", "there are no tools")
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
    """Return the variables for the chat template and the token budget for reasoning."""
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
            "output_config.format", "output_config.format is not valid", "it must contain a schema"
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
    return unsupported(param, f"blocks of type {kind[:40]!r} are not supported here", "send text")


def _messages(message: AnthropicMessage, param: str) -> list[dict[str, Any]]:
    """Return the messages for the chat template that one message of the request becomes.

    Each tool result becomes a separate message.
    """
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
                pass  # encrypted, so the model cannot read it
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
        raise unsupported(f"{where}.content", "a result can only be text", "send text")
    if block.is_error:
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _own_id(block.tool_use_id), "content": text}


def tool_use_id(id: str) -> str:
    """Return the id of a call in the form of Anthropic's API."""
    return _TOOL_USE + id.removeprefix("call_")


def _own_id(id: str | None) -> str:
    """Return the original id of a call, which templates may show to the model."""
    return (id or "").removeprefix(_TOOL_USE)
