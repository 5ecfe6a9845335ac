"""Grammars that hold an answer to calls of tools, for `tool_choice` "required" or a named tool.

The grammar spells the model's own format around the JSON schema of each tool, in llguidance's Lark
dialect. A marker that is a control token of the vocabulary is written as such, others as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from zinc.chat.format import ChatFormat
from zinc.server.errors import unsupported
from zinc.tokenizer import Tokenizer

MAX_CALLS = 16
# As models were shown it; where blanks are free, a small model may write nothing else.
_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}

Tool: TypeAlias = Mapping[str, Any]
Quote: TypeAlias = Callable[[str], str]


def grammar(format: ChatFormat, tokenizer: Tokenizer, tools: Sequence[Tool], several: bool) -> str:
    """A grammar of one call of one of the tools, or of `several`.

    Raises ApiError for a format in which calls cannot be forced.
    """
    writer = _WRITERS.get(format.name)
    if writer is None:
        raise unsupported(
            "tool_choice",
            f"calls cannot be forced in this model's format ({format.name})",
            'use "auto", and say in the prompt which tool to call',
        )

    def quote(text: str) -> str:
        id = tokenizer.id_of(text)
        return text if id is not None and id in tokenizer.special_ids else _literal(text)

    rules: list[str] = []
    names = []
    for i, tool in enumerate(tools):
        function = tool["function"]
        names.append(f"call_{i}")
        rules += writer(i, function["name"], function.get("parameters") or {}, quote)
    one = " | ".join(names)
    more = several and format.name in _REPEATED
    start = f'start: call ("\\n" call){{0,{MAX_CALLS - 1}}}' if more else "start: call"
    return "\n".join([start, f"call: {one}", *rules])


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _object(parameters: Mapping[str, Any]) -> str:
    """The schema of the arguments, which are an object whatever it says."""
    return f"%json {json.dumps({'type': 'object', **parameters, 'x-guidance': _SPACING})}"


def _hermes(i: int, name: str, parameters: Mapping[str, Any], quote: Quote) -> list[str]:
    head = _literal(f'\n{{"name": {json.dumps(name)}, "arguments": ')
    return [
        f"call_{i}: {quote('<tool_call>')} {head} args_{i} {_literal('}' + chr(10))} "
        f"{quote('</tool_call>')}",
        f"args_{i}: {_object(parameters)}",
    ]


def _llama(i: int, name: str, parameters: Mapping[str, Any], quote: Quote) -> list[str]:
    head = _literal(f'{{"name": {json.dumps(name)}, "parameters": ')
    return [f'call_{i}: {head} args_{i} "}}"', f"args_{i}: {_object(parameters)}"]


def _qwen_tags(i: int, name: str, parameters: Mapping[str, Any], quote: Quote) -> list[str]:
    """Parameters in the order of the schema; text stands as it is, other values as JSON."""
    properties = parameters.get("properties")
    required = parameters.get("required") or []
    rules: list[str] = []
    parts: list[str] = []
    for j, (key, schema) in enumerate(dict(properties or {}).items()):
        rule = f"param_{i}_{j}"
        is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
        choices = schema.get("enum") if is_text else None
        head, end = _literal(f"<parameter={key}>\n"), _literal("\n</parameter>\n")
        value = f"value_{i}_{j}"
        if choices and all(isinstance(c, str) for c in choices):
            rules.append(f"{rule}: {head} ({' | '.join(map(_literal, choices))}) {end}")
        elif is_text:  # any text, to the first closing tag that ends a line of its own
            rules += [f"{rule}: {head} {value}", f"{value}[suffix={end}]: /(?s:.*)/"]
        else:
            rules += [f"{rule}: {head} {value} {end}", f"{value}: %json {json.dumps(schema)}"]
        parts.append(rule if key in required else f"{rule}?")
    head = _literal(f"\n<function={name}>\n")
    end = _literal("</function>\n")
    body = " ".join([quote("<tool_call>"), head, *parts, end, quote("</tool_call>")])
    return [f"call_{i}: {body}", *rules]


_WRITERS = {"hermes": _hermes, "llama": _llama, "qwen-tags": _qwen_tags}
_REPEATED = ("hermes", "qwen-tags")
