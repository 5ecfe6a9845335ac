"""Tools of a request, in the form of OpenAI's chat API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zinc.server.errors import invalid


def named_tool(name: object, tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return a list with the tool called `name`. Raises ApiError if `tools` has none."""
    found = [tool for tool in tools or () if tool["function"]["name"] == name][:1]
    if not found:
        raise invalid("tool_choice", "tool_choice names a tool that the request does not have")
    return found
