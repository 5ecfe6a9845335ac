"""Tools of /v1/messages as functions for the chat template.

Anthropic defines some tools only by a type, which its own models were trained on. Those that the
client runs (bash, text editor, memory, computer) get a description and a schema of their documented
input. Tools that run on Anthropic's servers (such as web search) are ignored.
https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from zinc.server.errors import invalid, unsupported
from zinc.server.http.fields import Fields

_SERVER_TOOLS = (
    "web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_", "mcp_toolset",
)  # fmt: skip


class AnthropicTool(Fields):
    """A tool: a function of the client, or a tool that Anthropic defines by its type."""

    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None
    enable_zoom: bool | None = None
    max_characters: int | None = None


def functions(tools: Sequence[AnthropicTool] | None) -> list[dict[str, Any]] | None:
    """Return the tools in the form of OpenAI's chat API, or None if there are none.

    Tools that run on Anthropic's servers are left out. Raises ApiError for an unknown tool.
    """
    found = [
        {"type": "function", "function": _function(tool, f"tools[{i}]")}
        for i, tool in enumerate(tools or ())
        if tool.type is None or not tool.type.startswith(_SERVER_TOOLS)
    ]
    return found or None


def _function(tool: AnthropicTool, where: str) -> dict[str, Any]:
    kind = re.fullmatch(r"(\w+?)_(\d{8})", tool.type or "")
    define = _CLIENT_TOOLS.get(kind[1]) if kind else None
    if kind is not None and define is not None:
        return define(tool, int(kind[2]))
    if tool.type not in (None, "custom"):
        raise unsupported(where, f"there are no tools of type {tool.type!r}")
    if tool.name is None:
        raise invalid(f"{where}.name", f"{where}.name is missing")
    if tool.input_schema is None:
        raise invalid(f"{where}.input_schema", f"{where}.input_schema is missing")
    return _described(tool.name, tool.description, tool.input_schema)


def _described(name: str, description: str | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function with its members in the usual order, which models know best."""
    described = {} if description is None else {"description": description}
    return {"name": name, **described, "parameters": dict(parameters)}


def _object(required: Sequence[str], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _choice(description: str, *values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values), "description": description}


def _numbers(n: int, description: str) -> dict[str, Any]:
    items = {"type": "integer"}
    return {
        "type": "array", "items": items, "minItems": n, "maxItems": n, "description": description
    }  # fmt: skip


def _bash(tool: AnthropicTool, version: int) -> dict[str, Any]:
    return _described(
        tool.name or "bash",
        "Run a command in a bash session that keeps its state between calls.",
        _object(
            (),
            command=_text("Command to run. Required unless the session is restarted."),
            restart={"type": "boolean", "description": "True restarts the session."},
        ),
    )


_PATH = _text("Absolute path of the file or directory.")
_EDITS = {
    "path": _PATH,
    "file_text": _text("For create: the content of the file."),
    "old_str": _text("For str_replace: the text to replace; it must occur exactly once."),
    "new_str": _text("For str_replace: the text to put in its place."),
    "insert_line": _number("For insert: the line after which text is inserted; 0 is the start."),
    "view_range": _numbers(2, "For view: first and last line; -1 is the end of the file."),
}
_INSERTED = _text("For insert: the text to insert.")


def _text_editor(tool: AnthropicTool, version: int) -> dict[str, Any]:
    commands = ["view", "create", "str_replace", "insert"]
    name, edits = "str_replace_based_edit_tool", {**_EDITS, "insert_text": _INSERTED}
    if version < 20250429:
        name, edits = "str_replace_editor", dict(_EDITS)
        edits["new_str"] = _text("For str_replace: the new text. For insert: the text to insert.")
        commands.append("undo_edit")
    limit = (
        f" A view shows at most {tool.max_characters} characters." if tool.max_characters else ""
    )
    return _described(
        tool.name or name,
        f"View, create and edit text files.{limit}",
        _object(("command", "path"), command=_choice("What to do.", *commands), **edits),
    )


def _memory(tool: AnthropicTool, version: int) -> dict[str, Any]:
    commands = ("view", "create", "str_replace", "insert", "delete", "rename")
    return _described(
        tool.name or "memory",
        "Keep notes in files under /memories over conversations. View the directory before other "
        "work, and write down what later conversations need.",
        _object(
            ("command",),
            command=_choice("What to do.", *commands),
            **_EDITS,
            insert_text=_INSERTED,
            old_path=_text("For rename: the present path."),
            new_path=_text("For rename: the new path."),
        ),
    )


_ACTIONS = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click",
            "middle_click", "double_click", "screenshot", "cursor_position")  # fmt: skip
_ACTIONS_2025 = ("left_mouse_down", "left_mouse_up", "triple_click", "scroll", "hold_key", "wait")


def _computer(tool: AnthropicTool, version: int) -> dict[str, Any]:
    actions, more = list(_ACTIONS), {}
    text = "For type: the text. For key and hold_key: keys, as ctrl+s."
    if version >= 20250124:
        actions += _ACTIONS_2025
        directions = ("up", "down", "left", "right")
        text += " For clicks and scroll: keys to hold meanwhile."
        more = {
            "scroll_direction": _choice("For scroll.", *directions),
            "scroll_amount": _number("For scroll: clicks of the wheel."),
            "duration": {"type": "number", "description": "For hold_key and wait: seconds."},
            "start_coordinate": _numbers(2, "For left_click_drag: x and y of its start."),
        }
    if tool.enable_zoom:
        actions.append("zoom")
        more["region"] = _numbers(4, "For zoom: x0, y0, x1, y1 of the region to show enlarged.")
    size = ""
    if tool.display_width_px and tool.display_height_px:
        size = f" The screen has {tool.display_width_px} x {tool.display_height_px} pixels."
    return _described(
        tool.name or "computer",
        f"Use mouse, keyboard and screen of a computer.{size} Take a screenshot to see the result "
        "of an action.",
        _object(
            ("action",),
            action=_choice("What to do.", *actions),
            coordinate=_numbers(2, "x and y in pixels from the left and the top."),
            text=_text(text),
            **more,
        ),
    )


_CLIENT_TOOLS: Mapping[str, Callable[[AnthropicTool, int], dict[str, Any]]] = {
    "bash": _bash,
    "text_editor": _text_editor,
    "memory": _memory,
    "computer": _computer,
}
