"""Tools of OpenAI's APIs as functions for the chat template, and `tool_choice`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from zinc.core.dataclass import dataclass
from zinc.server.apis.openai.custom_tools import function_name, text_function
from zinc.server.apis.shared.tools import named_tool
from zinc.server.errors import invalid
from zinc.server.http.fields import Fields


class Function(Fields):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Custom(Fields):
    """A custom tool, which takes text in a format of its own."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    format: dict[str, Any] | None = None


class Tool(Fields):
    """A tool of the chat API: a function or a custom tool."""

    type: Literal["function", "custom"]
    function: Function | None = None
    custom: Custom | None = None


def plain_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Return the tools as functions for the chat template, or None if there are none.

    Raises ApiError for a tool without the member that its type names.
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
    """Return the names of the custom tools in `tools`."""
    return frozenset(t.custom.name for t in tools or () if t.type == "custom" and t.custom)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the model may call (None: no tools), and those of which it must call one."""

    tools: list[dict[str, Any]] | None
    forced: list[dict[str, Any]]


def tool_use(choice: object, tools: list[dict[str, Any]] | None) -> ToolUse:
    """Return the tools that `choice`, OpenAI's `tool_choice`, allows and forces.

    Tools that `allowed_tools` does not list are hidden from the model. Raises ApiError if `choice`
    is not valid.
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
        raise invalid("tool_choice", "tool_choice requires a call", "the request has no tools")
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
    """Return the tools that a choice of type `allowed_tools` lists, and its mode.

    The tools are in the order of the request.
    """
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
        if entry.get("type") in ("function", "custom"):  # other types run on OpenAI's servers
            (found,) = named_tool(tool_name(entry), tools)
            names.add(found["function"]["name"])
    allowed = [tool for tool in tools or () if tool["function"]["name"] in names]
    if mode == "required" and not allowed:
        raise invalid("tool_choice", "tool_choice requires a call", "it allows no tool")
    return allowed, mode


def tool_name(entry: Mapping[str, Any]) -> object:
    """Return the name in a reference to a tool, in the form of the chat or the responses API."""
    inner = entry.get(str(entry.get("type")))
    if isinstance(inner, Mapping):
        return inner.get("name")
    return function_name(entry) if "name" in entry else None
