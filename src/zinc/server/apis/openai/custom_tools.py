"""Custom tools, which take text, as functions with one string."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def function_name(item: Mapping[str, Any]) -> str:
    """The name that the function of a call's item has in the chat."""
    namespace = str(item.get("namespace") or "")
    mark = "__" if namespace and not namespace.endswith("__") else ""
    return f"{namespace}{mark}{item['name']}"


def text_arguments(text: str) -> str:
    """The arguments of a custom tool's function."""
    return json.dumps({"input": text}, ensure_ascii=False)


def text_of(arguments: str) -> str:
    """The text in such arguments, or what there is of them when the model got them wrong."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def text_function(
    name: str, description: str | None, format: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the function with one string that a custom tool is to the model.

    format: of the chat API or the responses API; the model is told a grammar and not held to it.
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
