"""Grammars that hold an answer to calls of tools, for `tool_choice` "required" or a named tool.

The grammar spells the model's own format around the JSON schema of each tool, in llguidance's Lark
dialect. A marker that is a control token of the vocabulary is written as such, others as text.
Formats without JSON in them have their values from values.py.

A keyword that no grammar can hold (uniqueItems, a lookahead) is left out of it, and the finished
arguments are checked by argument_check.py. A tool with `strict` true refuses such a keyword.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zinc.chat.format import ChatFormat
from zinc.grammar.kinds import MAX_SOURCE_CHARACTERS
from zinc.grammar.schema.document import SchemaError, load
from zinc.grammar.schema.rules import SPACED, SchemaRules
from zinc.server.errors import invalid, unsupported
from zinc.server.runtime.tool_calls.values import (
    GemmaValues,
    Marks,
    drop_unwritten,
    literal,
    text_or_json,
)
from zinc.tokenizer import Tokenizer

MAX_CALLS = 16


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that may be called: its number among them, its name, and its parameters' schema."""

    index: int
    name: str
    parameters: Mapping[str, Any]
    rules: SchemaRules

    @property
    def arguments(self) -> Sequence[str]:
        """Rules for the arguments as JSON: an object, whatever the schema says."""
        return self.rules.json(f"args_{self.index}", kinds=("object",)).lines

    def rule(self, *parts: str) -> str:
        """The rule of the whole call; its arguments are the part "args"."""
        mine = [f"args_{self.index}" if part == "args" else part for part in parts]
        return f"call_{self.index}: {' '.join(mine)}"


Writer = Callable[[Call, Marks], list[str]]


@dataclass(frozen=True, slots=True)
class Form:
    """The format of calls: the rules of one call, and the text before, between and after calls.

    With `between` None an answer has one call. `answer` stands before an answer that is no call.
    `member` is the name of the arguments where a call is a JSON object without a marker.
    """

    write: Writer
    between: str | None = None
    before: str = ""
    after: str = ""
    answer: str = ""
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Forced:
    """A grammar of calls, and the keywords that it leaves out, by tool."""

    source: str
    dropped: Mapping[str, Sequence[str]]


def grammar(
    format: ChatFormat, tokenizer: Tokenizer, tools: Sequence[Tool], several: bool
) -> Forced:
    """Return a grammar of one call of one of the tools, or of `several`.

    Raises ApiError for a format that has no calls, for a schema that is not valid, and for a
    keyword that no grammar can hold if the tool is strict.
    """
    marks = Marks(tokenizer)
    return _calls("start", _form(format, marks), marks, tools, several)


def calls_or_json(
    format: ChatFormat,
    tokenizer: Tokenizer,
    tools: Sequence[Tool],
    several: bool,
    schema: Any,
    param: str,
) -> str:
    """Return a grammar of calls of the tools, or of an answer in JSON by a schema.

    schema: as data or as text. param: names the field with the schema, for errors. Raises ApiError
    as `grammar` does, and for a schema of the answer that cannot be followed.
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
    form = _form(format, marks)
    calls = _calls("calls", form, marks, tools, several)
    if form.member is not None:
        # Calls without a marker begin like any JSON object: one schema has to tell them apart.
        # All schemas were compiled above, so what lenient leaves out are keywords of tools.
        every = one_of([*(_call_schema(tool, form.member) for tool in tools), data])
        return "\n".join(SchemaRules(every, lenient=True).json("start").lines)
    head = " ".join(part for part in ("answer:", form.answer, answer.start) if part)
    return "\n".join(["start: calls | answer", head, *answer.lines, calls.source])


def one_of(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema that holds where one of the schemas does, each with its own definitions."""
    names = [f"schema_{i}" for i in range(len(schemas))]
    definitions = {
        name: _moved(schema, f"#/$defs/{name}") for name, schema in zip(names, schemas, strict=True)
    }
    return {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names], "$defs": definitions}


def _moved(value: Any, root: str) -> Any:
    """Return a schema whose references to its own root "#" point to the new root."""
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
    """Return the schema of a call as a JSON object with the members "name" and `arguments`."""
    function = tool["function"]
    parameters = {"type": "object", **(function.get("parameters") or {})}
    inner = _moved(parameters, f"#/properties/{arguments}")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, arguments: inner},
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _form(format: ChatFormat, marks: Marks) -> Form:
    make = _FORMS.get(format.name)
    if make is None:
        raise unsupported(
            "tool_choice",
            f"calls cannot be forced in this model's format ({format.name})",
            'use "auto", and say in the prompt which tool to call',
        )
    return make(marks)


def _calls(start: str, form: Form, marks: Marks, tools: Sequence[Tool], several: bool) -> Forced:
    """Return the rules of calls, of which the first is named `start`. Raises ApiError."""
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
            lines += form.write(Call(i, name, parameters, rules), marks)
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
            raise invalid("tools", "the schemas of the tools are too large", "they are one grammar")
    more = ""
    if several and form.between is not None:
        more = f"({form.between} call){{0,{MAX_CALLS - 1}}}"
    one = " | ".join(f"call_{i}" for i in range(len(tools)))
    first = " ".join(part for part in (f"{start}:", form.before, "call", more, form.after) if part)
    return Forced("\n".join([first, f"call: {one}", *lines]), dropped)


Tool = Mapping[str, Any]


def _named(name: str, arguments: str) -> str:
    """The beginning of a JSON object with a call, up to its arguments."""
    return literal(f'{{"name": {json.dumps(name)}, "{arguments}": ')


def _hermes(call: Call, marks: Marks) -> list[str]:
    parts = (literal("\n"), _named(call.name, "arguments"), "args", literal("}\n"))
    return [call.rule(marks("<tool_call>"), *parts, marks("</tool_call>")), *call.arguments]


def _json(arguments: str) -> Writer:
    """A JSON object and nothing around it."""

    def write(call: Call, marks: Marks) -> list[str]:
        return [call.rule(_named(call.name, arguments), "args", literal("}")), *call.arguments]

    return write


def _mistral(marks: Marks) -> Form:
    """A list after one marker, or, in models that have [ARGS], a marker before each call."""
    if not marks.has("[ARGS]"):
        before = f"{marks('[TOOL_CALLS]')} {literal('[')}"
        return Form(_json("arguments"), literal(", "), before, literal("]"))

    def write(call: Call, marks: Marks) -> list[str]:
        head = (marks("[TOOL_CALLS]"), literal(call.name), marks("[ARGS]"))
        return [call.rule(*head, "args"), *call.arguments]

    return Form(write, between="")


def _deepseek(fenced: bool) -> Callable[[Marks], Form]:
    """V3 and R1 put the arguments in a fence; V3.1 does not."""

    def write(call: Call, marks: Marks) -> list[str]:
        separator = marks("<｜tool▁sep｜>")
        if fenced:
            head = [literal("function"), separator, literal(f"{call.name}\n```json\n")]
            body = [*head, "args", literal("\n```")]
        else:
            body = [literal(call.name), separator, "args"]
        open, close = marks("<｜tool▁call▁begin｜>"), marks("<｜tool▁call▁end｜>")
        return [call.rule(open, *body, close), *call.arguments]

    return lambda marks: Form(
        write,
        literal("\n") if fenced else "",
        marks("<｜tool▁calls▁begin｜>"),
        marks("<｜tool▁calls▁end｜>"),
    )


def _harmony(marks: Marks) -> Form:
    """A message in the commentary channel; where reasoning went before, it begins a new one."""

    def write(call: Call, marks: Marks) -> list[str]:
        head = [marks("<|channel|>"), literal(f"commentary to=functions.{call.name} ")]
        head += [marks("<|constrain|>"), literal("json"), marks("<|message|>")]
        return [call.rule(*head, "args", marks("<|call|>")), *call.arguments]

    begin = f"({marks('<|start|>')} {literal('assistant')})?"
    final = f"{marks('<|channel|>')} {literal('final')} {marks('<|message|>')}"
    return Form(write, before=begin, answer=f"{begin} {final}")


def _qwen_tags(call: Call, marks: Marks) -> list[str]:
    head = [marks("<tool_call>"), literal(f"\n<function={call.name}>\n")]
    end = [literal("</function>\n"), marks("</tool_call>")]

    def tags(key: str) -> tuple[str, str]:
        return f"<parameter={key}>\n", "\n</parameter>\n"

    return _tagged(call, marks, head, tags, end)


def _glm(call: Call, marks: Marks) -> list[str]:
    """The markers may be tokens of their own, so a value ends in one, and then a line break."""

    def tags(key: str) -> tuple[str, str]:
        return f"<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n"

    head = [marks("<tool_call>"), literal(f"{call.name}\n")]
    return _tagged(call, marks, head, tags, [marks("</tool_call>")])


def _tagged(
    call: Call,
    marks: Marks,
    head: Sequence[str],
    tags: Callable[[str], tuple[str, str]],
    end: Sequence[str],
) -> list[str]:
    """Parameters in the order of the schema, each between tags."""
    drop_unwritten(call.parameters, call.rules)
    required = call.parameters.get("required") or []
    rules: list[str] = []
    parts: list[str] = []
    for j, key in enumerate(dict(call.parameters.get("properties") or {})):
        name = f"param_{call.index}_{j}"
        open, close = tags(key)
        made = text_or_json(name, key, call.rules, open, close, marks)
        rules += made
        if made:
            parts.append(name if key in required else f"{name}?")
        elif key in required:
            raise SchemaError(f"the required property {key[:40]!r} allows no value")
    return [call.rule(*head, *parts, *end), *rules]


def _gemma4(call: Call, marks: Marks) -> list[str]:
    values = GemmaValues(f"value_{call.index}", call.parameters, marks, call.rules)
    arguments = values.object_of(call.parameters)
    head = [marks("<|tool_call>"), literal(f"call:{call.name}")]
    return [call.rule(*head, arguments, marks("<tool_call|>")), *values.rules]


def _plainly(write: Writer, between: str | None = None) -> Callable[[Marks], Form]:
    return lambda marks: Form(write, between)


_FORMS: Mapping[str, Callable[[Marks], Form]] = {
    "hermes": _plainly(_hermes, literal("\n")),
    "qwen-tags": _plainly(_qwen_tags, literal("\n")),
    "glm": _plainly(_glm, literal("\n")),
    "llama": lambda marks: Form(_json("parameters"), member="parameters"),
    "gemma3": lambda marks: Form(_json("parameters"), member="parameters"),
    "gemma4": _plainly(_gemma4, ""),
    "mistral": _mistral,
    "deepseek": _deepseek(fenced=True),
    "deepseek-v3.1": _deepseek(fenced=False),
    "harmony": _harmony,
}
