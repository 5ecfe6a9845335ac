"""Tools of OpenAI's APIs as functions for the chat template, and `tool_choice`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from zinc.server.apis.openai.custom_tools import function_name, text_function
from zinc.server.apis.shared.tools import named_tool
from zinc.server.errors import invalid
from zinc.server.http.body import Fields


class Function(Fields):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Custom(Fields):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    format: dict[str, Any] | None = None


class Tool(Fields):
    """A function, or a custom tool, which takes text."""

    type: Literal["function", "custom"]
    function: Function | None = None
    custom: Custom | None = None


def plain_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Return the tools as functions for the chat template, or None when there are none.

    Raises ApiError for a tool that has not what its type says.
    """
    return [_plain_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())] or None


def _plain_tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type == "custom" and tool.custom is not None:
        custom = tool.custom
        function = text_function(custom.name, custom.description, custom.format)
        return {"type": "function", "function": function}
    if tool.type == "function" and tool.function is not None:
        return tool.model_dump(exclude_unset=True)
    raise invalid(f"{where}.{tool.type}", f"{where}.{tool.type} is missing")


def custom_names(tools: Sequence[Tool] | None) -> frozenset[str]:
    """Return the names of the custom tools, whose calls carry text."""
    return frozenset(t.custom.name for t in tools or () if t.type == "custom" and t.custom)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request (None: none), and those of which the model has to call one."""

    tools: list[dict[str, Any]] | None
    forced: list[dict[str, Any]]


def tool_use(choice: object, tools: list[dict[str, Any]] | None) -> ToolUse:
    """Apply OpenAI's `tool_choice` to the tools. Raises ApiError when it is not valid.

    Of `allowed_tools` the model is shown the allowed ones alone.
    """
    if choice is None or choice == "auto":
        return ToolUse(tools, [])
    if choice == "none":
        return ToolUse(None, [])
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if isinstance(choice, Mapping) and kind == "allowed_tools":
        allowed, mode = _allowed_tools(choice, tools)
        return ToolUse(allowed or None, allowed if mode == "required" else [])
    if not tools:
        raise invalid("tool_choice", "tool_choice asks for a call", "the request has no tools")
    if choice == "required":
        return ToolUse(tools, tools)
    if isinstance(choice, Mapping) and kind in ("function", "custom"):
        return ToolUse(tools, named_tool(tool_name(choice), tools))
    raise invalid(
        "tool_choice",
        "tool_choice is not valid",
        'it must be "auto", "none", "required" or an object that names functions',
    )


def _allowed_tools(
    choice: Mapping[str, Any], tools: list[dict[str, Any]] | None
) -> tuple[list[dict[str, Any]], str]:
    """Return the tools that `allowed_tools` names, in the order of the request, and its mode."""
    inner = choice.get("allowed_tools", choice)  # the responses API has no inner object
    mode = inner.get("mode") if isinstance(inner, Mapping) else None
    listed = inner.get("tools") if isinstance(inner, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise invalid(
            "tool_choice",
            "tool_choice is not valid",
            "allowed_tools has a mode, auto or required, and a list of tools",
        )
    names = set()
    for entry in listed:
        if not isinstance(entry, Mapping):
            raise invalid("tool_choice", "tool_choice is not valid", "a tool is an object")
        if entry.get("type") in ("function", "custom"):  # others run on OpenAI's servers
            (found,) = named_tool(tool_name(entry), tools)
            names.add(found["function"]["name"])
    allowed = [tool for tool in tools or () if tool["function"]["name"] in names]
    if mode == "required" and not allowed:
        raise invalid("tool_choice", "tool_choice asks for a call", "it allows no tool")
    return allowed, mode


def tool_name(entry: Mapping[str, Any]) -> object:
    """Return the name in a reference to a tool, in the shape of the chat or the responses API."""
    inner = entry.get(str(entry.get("type")))
    if isinstance(inner, Mapping):
        return inner.get("name")
    return function_name(entry) if "name" in entry else None
