"""Adapt messages of OpenAI's chat API to a chat template.

Clients send one form to all models: content as text or a list of parts, call arguments as JSON
text, several calls in a message. `TemplateTraits` knows what a template accepts. Content that the
template does not accept is moved if possible: several calls become several messages, a system
prompt becomes part of the first question, and tools become text (`zinc.chat.tool_text`).
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from zinc.chat.format import CallText
from zinc.chat.formats.mistral import N_ID_CHARS
from zinc.chat.json_text import parsed
from zinc.chat.template import REASONING_KEYS, Message
from zinc.chat.tool_text import description, with_written_calls, written_traits
from zinc.chat.traits import TemplateTraits
from zinc.core.errors import RequestError, UnsupportedError

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
ROLES = ("system", "developer", "user", "assistant", "tool")
_SYSTEM = ("system", "developer")
_ALPHANUMERIC = string.digits + string.ascii_letters


def prepare(
    messages: Sequence[Message],
    traits: TemplateTraits,
    tools: Sequence[Mapping[str, Any]] = (),
    text: CallText | None = None,
) -> list[dict[str, Any]]:
    """Return copies of `messages` in the form that a template with these `traits` accepts.

    tools: of the request. text: how calls are written if the template has no place for tools. The
    messages then describe the tools, and have calls and results as text if the template leaves
    calls out too.

    Raises RequestError for an invalid message, and UnsupportedError for content other than text.
    Both name the message by its index.
    """
    if traits.tools:
        text = None
    writes = text is not None and not traits.renders_calls
    if writes:
        traits = written_traits(traits)
    prepared = [_message(message, f"messages[{i}]", traits) for i, message in enumerate(messages)]
    if text is not None and writes:
        prepared = with_written_calls(prepared, text)
    if text is not None and tools:
        prepared.insert(0, {"role": "system", "content": description(tools, text)})
    prepared = _one_system(prepared, traits)
    _name_results(prepared)
    if traits.short_ids:
        _shorten_ids(prepared)
    return prepared if traits.parallel_calls else _one_call_each(prepared)


def text_of(content: object, where: str) -> str:
    """Return the text of a message's `content`; parts are joined with line breaks.

    where: the field, named in errors. Raises RequestError for an invalid form, and
    UnsupportedError for parts that are not text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} is neither text nor a list of parts")
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise RequestError(f"{where}[{i}] is not a part with a type")
        key = TEXT_PARTS.get(part["type"])
        if key is None:
            raise UnsupportedError(
                f"{where}[{i}] is of the type {part['type']!r}", "only text is supported"
            )
        if not isinstance(part.get(key), str):
            raise RequestError(f"{where}[{i}].{key} is not text")
        texts.append(part[key])
    return "\n".join(texts)


def _message(message: Message, where: str, traits: TemplateTraits) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is not an object")
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role is {role!r}", f"it must be one of {', '.join(ROLES)}")
    prepared = {key: value for key, value in message.items() if key not in REASONING_KEYS}
    prepared["role"] = "system" if role in _SYSTEM else role
    prepared["content"] = text_of(message.get("content"), f"{where}.content")
    if role != "assistant":
        return prepared
    key = next((key for key in REASONING_KEYS if message.get(key)), None)
    reasoning = None if key is None else text_of(message[key], f"{where}.{key}")
    if calls := message.get("tool_calls"):
        prepared["tool_calls"] = _calls(calls, where, traits)
        if reasoning and prepared["content"] and not traits.reasoning_with_content:
            reasoning = f"{reasoning}\n\n{prepared['content']}"
            prepared["content"] = ""
        if not traits.content_with_calls:  # the template renders either content or calls
            prepared["content"] = ""
        if not prepared["content"] and traits.null_content:
            prepared["content"] = None
    else:
        prepared.pop("tool_calls", None)
    if reasoning and traits.reasoning_key is not None:
        prepared[traits.reasoning_key] = reasoning
    return prepared


def _calls(calls: object, where: str, traits: TemplateTraits) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise RequestError(f"{where}.tool_calls is not a list")
    prepared = []
    for i, call in enumerate(calls):
        inner = f"{where}.tool_calls[{i}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{inner} is not a call of a function with a name")
        arguments = _arguments(function.get("arguments"), f"{inner}.function.arguments", traits)
        function = {**function, "arguments": arguments}
        prepared.append({"type": "function", **call, "function": function})
    return prepared


def _arguments(arguments: object, where: str, traits: TemplateTraits) -> object:
    """Return call arguments as an object if the template accepts one, else as JSON text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        value = parsed(text) if text.strip() else {}
    except ValueError:
        value = None
    if value is None and text.strip() in ("null", ""):
        value = {}
    if not isinstance(value, dict):
        # Invalid JSON that the model wrote earlier can only be shown to it unchanged.
        if traits.text_arguments and isinstance(arguments, str):
            return arguments
        raise RequestError(f"{where} is not a JSON object")
    return value if traits.object_arguments else json.dumps(value, ensure_ascii=False)


def _one_system(messages: list[dict[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Return the messages with the system messages at the beginning joined to one.

    If the template has no system role, their text becomes part of the first question.
    """
    n = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    system, rest = "\n\n".join(message["content"] for message in messages[:n]), messages[n:]
    if n == 0:
        return messages
    if traits.system_role or not rest or rest[0]["role"] != "user":
        return [{"role": "system", "content": system}, *rest]
    return [{**rest[0], "content": f"{system}\n\n{rest[0]['content']}".strip()}, *rest[1:]]


def _name_results(messages: list[dict[str, Any]]) -> None:
    """Add the tool's name to each tool result, because some templates print it."""
    names: dict[Any, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[_id(call.get("id"))] = call["function"]["name"]
        if message["role"] == "tool" and not message.get("name"):
            name = names.get(_id(message.get("tool_call_id")))
            if name is not None:
                message["name"] = name


def _id(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _shorten_ids(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["id"] = _short_id(call.get("id"))
        if message["role"] == "tool":
            message["tool_call_id"] = _short_id(message.get("tool_call_id"))


def _short_id(id: object) -> str:
    """Return nine letters and digits that depend only on `id`."""
    text = id if isinstance(id, str) else ""
    if len(text) == N_ID_CHARS and text.isascii() and text.isalnum():
        return text
    number = int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest()[:8], "big")
    digits = []
    for _ in range(N_ID_CHARS):
        number, digit = divmod(number, len(_ALPHANUMERIC))
        digits.append(_ALPHANUMERIC[digit])
    return "".join(digits)


def _one_call_each(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with one call each: a message with several calls is split.

    Each part is followed by the result of its call.
    """
    spread: list[dict[str, Any]] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            spread.append(message)
            continue
        end = position
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results, position = messages[position:end], end
        for i, call in enumerate(calls):
            first = message if i == 0 else _without_text(message)
            own = [r for r in results if r.get("tool_call_id") == call.get("id")]
            results = [r for r in results if r not in own]
            spread += [{**first, "tool_calls": [call]}, *own]
        spread += results
    return spread


def _without_text(message: dict[str, Any]) -> dict[str, Any]:
    content = None if message["content"] is None else ""
    return {"role": message["role"], "content": content}
