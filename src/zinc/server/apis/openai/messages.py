"""Messages of the chat API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from zinc.server.apis.openai.custom_tools import text_arguments
from zinc.server.errors import invalid
from zinc.server.http.fields import Fields, FirstError


class ContentPart(Fields):
    """A part of a message's content. Only text is supported."""

    type: str
    text: str | None = None


class FunctionCall(Fields):
    """The function of a call, and its arguments as JSON text."""

    name: str
    arguments: str | dict[str, Any] = ""


class CustomCall(Fields):
    """The custom tool of a call, and its input."""

    name: str
    input: str = ""


class ToolCall(Fields):
    """A call of a function or of a custom tool."""

    id: str | None = None
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None


Content = str | Annotated[list[ContentPart], FirstError()] | None


class Message(Fields):
    """A message of a conversation. Further members are passed to the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], FirstError()] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


Messages = Annotated[list[Message], FirstError()]


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages for the chat template, without null members.

    Calls of custom tools become calls of functions.

    Raises ApiError for a message without content and a call without its tool.
    """
    plain = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if message.content is None and message.role != "assistant":
            raise invalid(f"{where}.content", f"{where}.content is missing")
        row = message.model_dump(exclude_none=True)
        if message.tool_calls is not None:
            row["tool_calls"] = [
                _plain_call(call, f"{where}.tool_calls[{j}]")
                for j, call in enumerate(message.tool_calls)
            ]
        plain.append(row)
    return plain


def _plain_call(call: ToolCall, where: str) -> dict[str, Any]:
    if call.custom is not None and call.type == "custom":
        function = {"name": call.custom.name, "arguments": text_arguments(call.custom.input)}
        return {"id": call.id, "type": "function", "function": function}
    if call.function is None:
        raise invalid(f"{where}.{call.type}", f"{where}.{call.type} is missing")
    return call.model_dump(exclude_none=True)
