"""Call formats: the grammar rules of one call, as each family of models writes it.

A marker that is a control token of the vocabulary becomes a token in the grammar, any other marker
is text (`Marks`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zinc.chat.formats.hy3 import TAGS as HY3_TAGS
from zinc.core.dataclass import dataclass
from zinc.grammar.schema.document import SchemaError
from zinc.grammar.schema.rules import SchemaRules
from zinc.server.runtime.tool_calls.gemma_values import GemmaValues
from zinc.server.runtime.tool_calls.marks import Marks, literal
from zinc.server.runtime.tool_calls.tagged_values import drop_object_keywords, text_or_json


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that may be called.

    index: its number among the tools, part of the names of its rules. parameters: the JSON schema
    of its arguments. rules: the same schema as grammar rules.
    """

    index: int
    name: str
    parameters: Mapping[str, Any]
    rules: SchemaRules

    @property
    def arguments(self) -> Sequence[str]:
        """The rules of the arguments as a JSON object, even if the schema allows other values."""
        return self.rules.json(f"args_{self.index}", kinds=("object",)).lines

    def rule(self, *parts: str) -> str:
        """Return the rule of the whole call. In `parts`, "args" stands for the arguments."""
        mine = [f"args_{self.index}" if part == "args" else part for part in parts]
        return f"call_{self.index}: {' '.join(mine)}"


Writer = Callable[[Call, Marks], list[str]]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family of models writes calls.

    write: returns the rules of one call.
    between: symbols between two calls; None if an answer can have only one call.
    before, after: symbols before the first and after the last call.
    before_text: symbols before an answer that is not a call.
    json_member: the member with the arguments, if a call is a JSON object without a marker.
    """

    write: Writer
    between: str | None = None
    before: str = ""
    after: str = ""
    before_text: str = ""
    json_member: str | None = None


def _named(name: str, arguments: str) -> str:
    """Return the beginning of a call as JSON, up to the value of the member `arguments`."""
    return literal(f'{{"name": {json.dumps(name)}, "{arguments}": ')


def _hermes(call: Call, marks: Marks) -> list[str]:
    parts = (literal("\n"), _named(call.name, "arguments"), "args", literal("}\n"))
    return [call.rule(marks("<tool_call>"), *parts, marks("</tool_call>")), *call.arguments]


def _json(arguments: str) -> Writer:
    """Return the writer of a call that is a JSON object without a marker around it."""

    def write(call: Call, marks: Marks) -> list[str]:
        return [call.rule(_named(call.name, arguments), "args", literal("}")), *call.arguments]

    return write


def _mistral(marks: Marks) -> CallFormat:
    """Return Mistral's format: a marker before each call if the model has [ARGS], else a list."""
    if not marks.has("[ARGS]"):
        before = f"{marks('[TOOL_CALLS]')} {literal('[')}"
        return CallFormat(_json("arguments"), literal(", "), before, literal("]"))

    def write(call: Call, marks: Marks) -> list[str]:
        head = (marks("[TOOL_CALLS]"), literal(call.name), marks("[ARGS]"))
        return [call.rule(*head, "args"), *call.arguments]

    return CallFormat(write, between="")


def _granite(marks: Marks) -> CallFormat:
    before = f"{marks('<|tool_call|>')} {literal('[')}"
    return CallFormat(_json("arguments"), literal(", "), before, literal("]"))


def _lfm2(marks: Marks) -> CallFormat:
    """Return LFM2's format with a JSON list in place of Python calls."""
    before = " ".join((marks("<|tool_call_start|>"), literal("[")))
    after = " ".join((literal("]"), marks("<|tool_call_end|>")))
    return CallFormat(_json("arguments"), literal(", "), before, after)


def _command(marks: Marks) -> CallFormat:
    """Return Command's format: a list of calls with ids, on lines of their own."""

    def write(call: Call, marks: Marks) -> list[str]:
        name = literal(f'", "tool_name": {json.dumps(call.name)}, "parameters": ')
        head = (literal('{"tool_call_id": "'), "/[0-9]{1,3}/", name)
        return [call.rule(*head, "args", literal("}")), *call.arguments]

    before = " ".join((marks("<|START_ACTION|>"), literal("[\n    ")))
    after = " ".join((literal("\n]"), marks("<|END_ACTION|>")))
    return CallFormat(write, literal(",\n    "), before, after)


def _command_r(marks: Marks) -> CallFormat:
    """Return the format of Command R: a list of calls in a code fence."""

    def write(call: Call, marks: Marks) -> list[str]:
        head = f'    {{\n        "tool_name": {json.dumps(call.name)},\n        "parameters": '
        return [call.rule(literal(head), "args", literal("\n    }")), *call.arguments]

    before = " ".join((marks("Action:"), literal("\n```json\n[\n")))
    return CallFormat(write, literal(",\n"), before, literal("\n]```"))


def _deepseek(fenced: bool) -> Callable[[Marks], CallFormat]:
    """Return DeepSeek's format. fenced: arguments are in a code fence (V3 and R1, not V3.1)."""

    def write(call: Call, marks: Marks) -> list[str]:
        separator = marks("<｜tool▁sep｜>")
        if fenced:
            head = [literal("function"), separator, literal(f"{call.name}\n```json\n")]
            body = [*head, "args", literal("\n```")]
        else:
            body = [literal(call.name), separator, "args"]
        open, close = marks("<｜tool▁call▁begin｜>"), marks("<｜tool▁call▁end｜>")
        return [call.rule(open, *body, close), *call.arguments]

    return lambda marks: CallFormat(
        write,
        literal("\n") if fenced else "",
        marks("<｜tool▁calls▁begin｜>"),
        marks("<｜tool▁calls▁end｜>"),
    )


def _harmony(marks: Marks) -> CallFormat:
    """Return gpt-oss's format: a call is a message in the commentary channel.

    After reasoning, which is a message too, the call starts with the beginning of a message.
    """

    def write(call: Call, marks: Marks) -> list[str]:
        head = [marks("<|channel|>"), literal(f"commentary to=functions.{call.name} ")]
        head += [marks("<|constrain|>"), literal("json"), marks("<|message|>")]
        return [call.rule(*head, "args", marks("<|call|>")), *call.arguments]

    begin = f"({marks('<|start|>')} {literal('assistant')})?"
    final = f"{marks('<|channel|>')} {literal('final')} {marks('<|message|>')}"
    return CallFormat(write, before=begin, before_text=f"{begin} {final}")


def _qwen_tags(call: Call, marks: Marks) -> list[str]:
    head = [marks("<tool_call>"), literal(f"\n<function={call.name}>\n")]
    end = [literal("</function>\n"), marks("</tool_call>")]

    def tags(key: str) -> tuple[str, str]:
        return f"<parameter={key}>\n", "\n</parameter>\n"

    return _tagged(call, marks, head, tags, end)


def _seed(call: Call, marks: Marks) -> list[str]:
    head = [marks("<seed:tool_call>"), literal(f"\n<function={call.name}>\n")]
    end = [literal("</function>\n"), marks("</seed:tool_call>")]

    def tags(key: str) -> tuple[str, str]:
        return f"<parameter={key}>", "</parameter>\n"

    return _tagged(call, marks, head, tags, end)


def _minimax(marks: Marks) -> CallFormat:
    """Return MiniMax's format: a block of calls."""

    def write(call: Call, marks: Marks) -> list[str]:
        def tags(key: str) -> tuple[str, str]:
            return f'<parameter name="{key}">', "</parameter>\n"

        head = [literal(f'<invoke name="{call.name}">\n')]
        return _tagged(call, marks, head, tags, [literal("</invoke>\n")])

    before = " ".join((marks("<minimax:tool_call>"), literal("\n")))
    return CallFormat(write, "", before, marks("</minimax:tool_call>"))


def _minicpm(call: Call, marks: Marks) -> list[str]:
    def tags(key: str) -> tuple[str, str]:
        return f'<param name="{key}">', "</param>"

    head = [literal(f'<function name="{call.name}">')]
    return _tagged(call, marks, head, tags, [literal("</function>")])


def _glm(call: Call, marks: Marks) -> list[str]:
    """Return the rules of a GLM call. A value ends at a marker that may be a token, then "\\n"."""

    def tags(key: str) -> tuple[str, str]:
        return f"<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n"

    head = [marks("<tool_call>"), literal(f"{call.name}\n")]
    return _tagged(call, marks, head, tags, [marks("</tool_call>")])


def _hy3(marks: Marks) -> CallFormat:
    """Return Hy3's format: a block of calls with the tags of GLM, which have a suffix."""
    open, close, key, key_end, value, value_end = HY3_TAGS.all

    def write(call: Call, marks: Marks) -> list[str]:
        def tags(name: str) -> tuple[str, str]:
            return f"{key}{name}{key_end}\n{value}", f"{value_end}\n"

        head = [marks(open), literal(call.name), marks(HY3_TAGS.name_end), literal("\n")]
        return _tagged(call, marks, head, tags, [marks(close), literal("\n")])

    before = " ".join((marks("<tool_calls:opensource>"), literal("\n")))
    return CallFormat(write, "", before, marks("</tool_calls:opensource>"))


def _tagged(
    call: Call,
    marks: Marks,
    head: Sequence[str],
    tags: Callable[[str], tuple[str, str]],
    end: Sequence[str],
) -> list[str]:
    """Return the rules of a call with each argument between tags, in the order of the schema.

    tags: returns the opening and the closing tag of an argument.
    """
    drop_object_keywords(call.parameters, call.rules)
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


def _plainly(write: Writer, between: str | None = None) -> Callable[[Marks], CallFormat]:
    return lambda marks: CallFormat(write, between)


CALL_FORMATS: Mapping[str, Callable[[Marks], CallFormat]] = {
    "hermes": _plainly(_hermes, literal("\n")),
    "qwen-tags": _plainly(_qwen_tags, literal("\n")),
    "seed": _plainly(_seed, literal("\n")),
    "minimax": _minimax,
    "minicpm": _plainly(_minicpm, ""),
    "hy3": _hy3,
    "lfm2": _lfm2,
    "command": _command,
    "command-r": _command_r,
    "glm": _plainly(_glm, literal("\n")),
    "llama": lambda marks: CallFormat(_json("parameters"), json_member="parameters"),
    "gemma3": lambda marks: CallFormat(_json("parameters"), json_member="parameters"),
    "gemma4": _plainly(_gemma4, ""),
    "mistral": _mistral,
    "granite": _granite,
    "deepseek": _deepseek(fenced=True),
    "deepseek-v3.1": _deepseek(fenced=False),
    "harmony": _harmony,
}
