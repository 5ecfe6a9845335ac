"""Grammars that force an answer to be tool calls (`tool_choice`), or to be calls or JSON.

A grammar is source text in llguidance's Lark dialect: the model's own call format (formats.py)
around the JSON schema of each tool's arguments. It omits keywords that no grammar can enforce, such
as uniqueItems; argument_check.py checks the finished arguments against the whole schema. A tool
with `"strict": true` is refused if it uses such a keyword.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from zinc.chat.format import ChatFormat
from zinc.core.dataclass import dataclass
from zinc.grammar.kinds import MAX_SOURCE_CHARACTERS
from zinc.grammar.schema.document import SchemaError, load
from zinc.grammar.schema.rules import SchemaRules
from zinc.grammar.schema.spacing import SPACED
from zinc.server.errors import invalid, unsupported
from zinc.server.runtime.tool_calls.formats import CALL_FORMATS, Call, CallFormat
from zinc.server.runtime.tool_calls.marks import Marks
from zinc.tokenizer import Tokenizer

MAX_CALLS = 16  # of one answer

Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The source of a grammar of calls. dropped: the keywords it does not enforce, by tool name."""

    source: str
    dropped: Mapping[str, Sequence[str]]


def forced_calls(
    format: ChatFormat, tokenizer: Tokenizer, tools: Sequence[Tool], several: bool
) -> CallGrammar:
    """Return the grammar of an answer that is one call of one of `tools`, or `several` calls.

    Raises ApiError for a chat format without calls, for an invalid schema, and for a strict tool
    with a keyword that no grammar can enforce.
    """
    marks = Marks(tokenizer)
    return _rules("start", _call_format(format, marks), marks, tools, several)


def calls_or_json(
    format: ChatFormat,
    tokenizer: Tokenizer,
    tools: Sequence[Tool],
    several: bool,
    schema: Any,
    param: str,
) -> str:
    """Return the source of a grammar of calls of `tools`, or of JSON that follows `schema`.

    schema: as data or as JSON text. param: the request field that holds it, named in errors.
    Raises ApiError as `forced_calls` does, and for a `schema` that is not supported.
    """
    try:
        data = load(schema if isinstance(schema, str) else json.dumps(schema))
        if not isinstance(data, Mapping):
            raise SchemaError("it must be an object")
        answer = SchemaRules(data).json("value")
    except SchemaError as error:
        raise invalid(param, f"the JSON schema of {param} cannot be followed", error.why) from None
    except RecursionError:
        raise invalid(param, f"the JSON schema of {param} is nested too deeply") from None
    marks = Marks(tokenizer)
    call_format = _call_format(format, marks)
    calls = _rules("calls", call_format, marks, tools, several)
    if call_format.json_member is not None:
        # A call without a marker begins like any JSON object, so one schema has to cover both. All
        # schemas were compiled above: `lenient` can only drop keywords of the tools.
        members = [_call_schema(tool, call_format.json_member) for tool in tools]
        return "\n".join(SchemaRules(one_of([*members, data]), lenient=True).json("start").lines)
    head = " ".join(part for part in ("answer:", call_format.before_text, answer.start) if part)
    return "\n".join(["start: calls | answer", head, *answer.lines, calls.source])


def one_of(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema for values that follow at least one of `schemas`.

    Each schema becomes a definition, and references within it are moved along.
    """
    names = [f"schema_{i}" for i in range(len(schemas))]
    definitions = {
        name: _moved(schema, f"#/$defs/{name}") for name, schema in zip(names, schemas, strict=True)
    }
    return {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names], "$defs": definitions}


def _moved(value: Any, root: str) -> Any:
    """Return a copy of the schema `value` in which references to "#" point to `root` instead."""
    if isinstance(value, list):
        return [_moved(item, root) for item in value]
    if not isinstance(value, Mapping):
        return value
    moved = {key: _moved(item, root) for key, item in value.items()}
    target = value.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = root + target[1:]
    return moved


def _call_schema(tool: Tool, arguments: str) -> dict[str, Any]:
    """Return the schema of a call as an object with the members "name" and `arguments`."""
    function = tool["function"]
    parameters = {"type": "object", **(function.get("parameters") or {})}
    inner = _moved(parameters, f"#/properties/{arguments}")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, arguments: inner},
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _call_format(format: ChatFormat, marks: Marks) -> CallFormat:
    make = CALL_FORMATS.get(format.name)
    if make is None:
        raise unsupported(
            "tool_choice",
            f"calls cannot be forced in this model's format ({format.name})",
            'use "auto", and say in the prompt which tool to call',
        )
    return make(marks)


def _rules(
    start: str, call_format: CallFormat, marks: Marks, tools: Sequence[Tool], several: bool
) -> CallGrammar:
    """Return rules for calls of `tools`. `start` is the name of the first rule. Raises ApiError."""
    lines: list[str] = []
    dropped: dict[str, Sequence[str]] = {}
    n_characters = 0
    for i, tool in enumerate(tools):
        n_lines = len(lines)
        function = tool["function"]
        name, parameters = function["name"], function.get("parameters") or {}
        is_strict = function.get("strict") is True
        try:
            rules = SchemaRules(parameters, spacing=SPACED, lenient=not is_strict)
            lines += call_format.write(Call(i, name, parameters, rules), marks)
        except SchemaError as error:
            hint = "take it out of the schema, or set strict to false" if is_strict else ""
            what = f"the parameters of the tool {name!r} cannot be followed"
            raise invalid("tools", what, error.why, hint) from None
        except RecursionError:
            what = f"the parameters of the tool {name!r} are nested too deeply"
            raise invalid("tools", what) from None
        if rules.dropped:
            dropped[name] = tuple(rules.dropped)
        n_characters += sum(map(len, lines[n_lines:]))
        if n_characters > MAX_SOURCE_CHARACTERS:
            raise invalid(
                "tools", "the schemas of the tools are too large", "together they form one grammar"
            )
    more = ""
    if several and call_format.between is not None:
        more = f"({call_format.between} call){{0,{MAX_CALLS - 1}}}"
    parts = (f"{start}:", call_format.before, "call", more, call_format.after)
    first = " ".join(part for part in parts if part)
    call = "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))
    return CallGrammar("\n".join([first, call, *lines]), dropped)
