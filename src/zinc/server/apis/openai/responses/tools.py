"""Tools of /v1/responses as functions of the chat API, and calls of these functions as items.

A custom tool becomes a function with one string, a namespace a prefix of function names. Tools that
run on OpenAI's servers (such as web search) are ignored. Other types of tools are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from zinc.server.apis.openai.custom_tools import function_name, text_function
from zinc.server.errors import invalid, unsupported
from zinc.server.http.fields import Fields, FirstError

_HOSTED = ("web_search", "file_search", "code_interpreter", "image_generation", "tool_search")


class ResponseTool(Fields):
    """A tool of the responses API; a namespace contains further tools."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: Annotated[list[ResponseTool], FirstError()] | None = None


class ResponseTools:
    """The tools of a request.

    functions: as functions for the chat template. offered: as the client sent them, without tools
    that run on OpenAI's servers. Raises ApiError for a tool that is not supported.
    """

    def __init__(self, tools: Sequence[ResponseTool] | None) -> None:
        self.functions: list[dict[str, Any]] = []
        self.offered: list[dict[str, Any]] = []
        self._members: dict[str, dict[str, str]] = {}  # function name -> members of a call item
        for i, tool in enumerate(tools or ()):
            if not tool.type.startswith(_HOSTED):
                self._add(tool, f"tools[{i}]", "")
                self.offered.append(tool.model_dump(exclude_unset=True))

    def item_of(self, name: str) -> dict[str, str]:
        """Return the type, name and namespace of the item for a call of the function `name`."""
        return self._members.get(name, {"type": "function_call", "name": name})

    def _add(self, tool: ResponseTool, where: str, namespace: str) -> None:
        if tool.type == "namespace" and not namespace:
            for i, inner in enumerate(tool.tools or ()):
                self._add(inner, f"{where}.tools[{i}]", _required(tool.name, where))
            return
        if tool.type not in ("function", "custom"):
            raise unsupported(where, f"there are no tools of type {tool.type[:40]!r}")
        name = _required(tool.name, where)
        function: dict[str, Any] = {"name": name}
        function |= tool.model_dump(
            include={"description", "parameters", "strict"}, exclude_none=True
        )
        if tool.type == "custom":
            function = text_function(name, tool.description, tool.format)
        kind = "custom_tool_call" if tool.type == "custom" else "function_call"
        members = {"type": kind, "name": name, **({"namespace": namespace} if namespace else {})}
        full = function_name(members)
        self._members[full] = members
        self.functions.append({"type": "function", "function": {**function, "name": full}})


def _required(name: str | None, where: str) -> str:
    if not name:
        raise invalid(f"{where}.name", f"{where}.name is missing")
    return name
