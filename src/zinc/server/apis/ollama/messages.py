"""Messages and tools of Ollama's chat, converted to the form of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from zinc.server.apis.ollama.common import refuse_images
from zinc.server.errors import invalid
from zinc.server.http.fields import Fields, FirstError


class CalledFunction(Fields):
    """The function of a call, and its arguments."""

    name: str
    arguments: dict[str, Any] | str = ""


class ToolCall(Fields):
    """A call of a function."""

    id: str | None = None
    function: CalledFunction


class Message(Fields):
    """A message of a conversation.

    tool_name: in a message of the role "tool", the function whose result it is.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: Annotated[list[ToolCall], FirstError()] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


Messages = Annotated[list[Message], FirstError()]


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages in the form of OpenAI's API.

    Ollama's calls have no ids. Each gets one here, and a result gets that of the first unanswered
    call of its function, or of the first unanswered call. Raises ApiError for a message with
    images, and for one without content.
    """
    plain: list[dict[str, Any]] = []
    unanswered: list[tuple[str, str]] = []  # id and name of each call without a result
    n_calls = 0
    for i, message in enumerate(messages):
        refuse_images(message.images, f"messages[{i}].images")
        if message.content is None and message.role != "assistant":
            raise invalid(f"messages[{i}].content", f"messages[{i}].content is missing")
        row: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            row["reasoning_content"] = message.thinking
        if message.role == "assistant" and message.tool_calls:
            row["tool_calls"] = []
            for call in message.tool_calls:
                id = call.id or f"call_{n_calls}"
                n_calls += 1
                unanswered.append((id, call.function.name))
                given = call.function.arguments
                arguments = given if isinstance(given, str) else json.dumps(given)
                function = {"name": call.function.name, "arguments": arguments}
                row["tool_calls"].append({"id": id, "type": "function", "function": function})
        elif message.role == "tool":
            row |= _answered(message, unanswered)
        plain.append(row)
    return plain


def _answered(message: Message, unanswered: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the id and the name of the call that `message` answers; remove it from the list."""
    found = next(
        (
            call
            for call in unanswered
            if message.tool_call_id in (None, call[0]) and message.tool_name in (None, call[1])
        ),
        None,
    )
    if found is not None:
        unanswered.remove(found)
    id, name = found or (message.tool_call_id, message.tool_name)
    return {
        key: value for key, value in (("tool_call_id", id), ("name", name)) if value is not None
    }
