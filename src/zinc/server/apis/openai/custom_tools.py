"""Custom tools, which take text, as functions with one string."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def function_name(item: Mapping[str, Any]) -> str:
    """Return the name of the function that a call item refers to: the namespace and the name."""
    namespace = str(item.get("namespace") or "")
    mark = "__" if namespace and not namespace.endswith("__") else ""
    return f"{namespace}{mark}{item['name']}"


def text_arguments(text: str) -> str:
    """Return the arguments of a custom tool's function for the input `text`, as JSON."""
    return json.dumps({"input": text}, ensure_ascii=False)


def text_of(arguments: str) -> str:
    """Return the input text in the arguments of a custom tool's function.

    Arguments that the model wrote in another form are returned unchanged.
    """
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def text_function(
    name: str, description: str | None, format: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the function with one string argument that stands for a custom tool.

    format: as in the chat API or the responses API. A grammar is shown to the model but not
    enforced.
    """
    text: dict[str, Any] = {"type": "string"}
    form = format or {}
    if form.get("type") == "grammar":
        form = form["grammar"] if isinstance(form.get("grammar"), Mapping) else form
        text["description"] = f"Text of this {form.get('syntax')} grammar: {form.get('definition')}"
    return {
        "name": name,
        "description": description or "",
        "parameters": {"type": "object", "properties": {"input": text}, "required": ["input"]},
    }
