"""The constraint that a chat request puts on its answers: forced calls, or an output format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from zinc.chat.format import ChatFormat
from zinc.core.dataclass import dataclass
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.fields import Constraint
from zinc.server.runtime.served_model import ServedModel
from zinc.server.runtime.tool_calls import grammar
from zinc.server.runtime.tool_calls.argument_check import check_available


@dataclass(frozen=True, slots=True)
class AnswerConstraint:
    """The grammar of an answer (None: any text), and what remains to be checked at its end.

    unchecked: JSON schemas that the grammar does not enforce completely, by tool name.
    """

    constraint: Constraint | None
    unchecked: Mapping[str, Any] = field(default_factory=dict)


def answer_constraint(
    model: ServedModel, request: ChatRequest, format: ChatFormat
) -> AnswerConstraint:
    """Return the constraint on the answers of `request`. Raises ApiError if there cannot be one.

    A forced call takes precedence over the output format, which is a format of text.
    """
    if request.forced_tools:
        return _forced_calls(model, request, format)
    return AnswerConstraint(_output_format(model, request, format))


def _forced_calls(model: ServedModel, request: ChatRequest, format: ChatFormat) -> AnswerConstraint:
    several = not request.one_call and len(request.forced_tools) == len(request.tools or ())
    found = grammar.forced_calls(format, model.tokenizer, request.forced_tools, several)
    for name, keywords in found.dropped.items():
        check_available(name, keywords[0])
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {}
               for tool in request.forced_tools}  # fmt: skip
    return AnswerConstraint(
        Constraint("rules", found.source, "tool_choice"),
        {name: schemas[name] for name in found.dropped},
    )


def _output_format(
    model: ServedModel, request: ChatRequest, format: ChatFormat
) -> Constraint | None:
    """Return the output format of an answer that need not be a call, or None.

    With tools and a JSON format, the model chooses between calls and JSON.
    """
    output = request.constraint
    is_json = output is not None and output.kind in ("json_object", "json_schema")
    if output is None or not is_json or not request.tools or not format.has_calls:
        return output
    schema = {"type": "object"} if output.kind == "json_object" else output.source
    source = grammar.calls_or_json(
        format, model.tokenizer, request.tools, not request.one_call, schema, output.param
    )
    return Constraint("rules", source, output.param)
