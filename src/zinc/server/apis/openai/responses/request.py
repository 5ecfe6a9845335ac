"""Requests of /v1/responses, and their input items, as chat requests."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from zinc.chat.messages import ROLES, text_of
from zinc.core.errors import RequestError, UnsupportedError
from zinc.server.apis.openai.chat_request import template_arguments
from zinc.server.apis.openai.custom_tools import function_name, text_arguments
from zinc.server.apis.openai.responses.fields import ResponseFields
from zinc.server.apis.openai.responses.tools import ResponseTools
from zinc.server.apis.openai.tools import tool_use
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.fields import (
    Constraint,
    constraint_of,
    refuse,
    sampling_params,
    telemetry_of,
)
from zinc.server.errors import invalid, unsupported

LOGPROBS = "message.output_text.logprobs"


_REFUSED: dict[str, tuple[Any, str]] = {
    "background": (False, "there are no background responses"),
    "conversation": (None, "conversations are not stored; use previous_response_id"),
    "prompt": (None, "there are no stored prompt templates"),
    "context_management": ([], "conversations are not edited"),
    "moderation": (None, "there is no moderation"),
    "image": (None, "only text can be generated"),
    "reasoning_format": ("auto", "reasoning is returned as items"),
}
# "reasoning.encrypted_content" has no effect, because reasoning is always returned as plain text.
_INCLUDES = (LOGPROBS, "reasoning.encrypted_content")


def to_request(
    fields: ResponseFields, messages: Sequence[Mapping[str, Any]], tools: ResponseTools
) -> ChatRequest:
    """Return the request as a `ChatRequest`. Raises ApiError.

    messages: the conversation, without the instructions.
    """
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
            raise unsupported("include", f"this server has no {name[:60]!r}")
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
    """Return the input as a list of items, each with a type and an id. Raises ApiError."""
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
            raise unsupported(where, f"items of type {str(kind)[:40]!r} are unknown")
        for name, types in check.items():
            if not isinstance(item.get(name), types):
                raise invalid(f"{where}.{name}", f"{where}.{name} is missing or not valid")
            if list in types:
                _check_text(item[name], f"{where}.{name}")
        if kind == "message" and item["role"] not in ROLES:
            given_role = item["role"][:40]
            raise invalid(
                f"{where}.role",
                f"{where}.role is {given_role!r}",
                f"it must be one of {', '.join(ROLES)}",
            )
        items.append({"id": f"item_{uuid.uuid4().hex}", **item, "type": kind})
    return items


def _check_text(content: object, where: str) -> None:
    """Raise ApiError, which names the part, unless the content of an item is text."""
    try:
        text_of(content, where)
    except (RequestError, UnsupportedError) as error:
        raise invalid(error.what.split(" ")[0], error.what, error.why, error.hint) from None


_CHECKS: dict[str, dict[str, tuple[type, ...]]] = {
    "message": {"role": (str,), "content": (str, list)},
    "function_call": {"call_id": (str,), "name": (str,), "arguments": (str,)},
    "function_call_output": {"call_id": (str,), "output": (str, list)},
    "custom_tool_call": {"call_id": (str,), "name": (str,), "input": (str,)},
    "custom_tool_call_output": {"call_id": (str,), "output": (str, list)},
    "reasoning": {"summary": (list, type(None))},
}


def item_messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return items as messages of the chat API.

    Text, reasoning and calls of one turn of the assistant become one message.
    """
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
