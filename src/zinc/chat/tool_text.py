"""Tools for chat templates that have no place for them: those of Gemma 3, Llama 3, DeepSeek R1.

The system prompt describes the tools and the form of a call, which is that of the model's format,
or Hermes' form in formats without calls. If the template leaves out calls too, those of earlier
answers become text in that form, and results of calls become messages of the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zinc.chat.format import CallText, ChatFormat
from zinc.chat.formats.hermes import HERMES
from zinc.chat.traits import TemplateTraits


def format_for_tools(format: ChatFormat) -> ChatFormat:
    """Return the format of a model's calls after the system prompt of `description`."""
    return format if format.has_calls else HERMES


def written_traits(traits: TemplateTraits) -> TemplateTraits:
    """Return `traits` with calls in the form that `with_written_calls` reads."""
    return replace(
        traits,
        object_arguments=True,
        text_arguments=True,
        null_content=False,
        content_with_calls=True,
    )


def description(tools: Iterable[Mapping[str, Any]], text: CallText) -> str:
    """Return the system prompt that describes `tools`."""
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return (
        f"You can call these tools, described as JSON:\n{listed}\n\n"
        "To call a tool, write its name and arguments in this form, and nothing after it:\n"
        f"{text.call('tool_name', {'argument': 'value'})}\n\n"
        "The user's next message then has the result."
    )


def with_written_calls(messages: Sequence[dict[str, Any]], text: CallText) -> list[dict[str, Any]]:
    """Return prepared `messages` with calls and results as text.

    Results and the user's text after them become one message, since many templates require that
    user and assistant alternate.
    """
    written: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message["content"] or ""
        if role == "tool":
            before, after = text.result
            role, content = "user", f"{before}{content}{after}"
        calls = [
            text.call(call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
        kept = {k: v for k, v in message.items() if k not in ("tool_calls", "tool_call_id")}
        content = "\n".join(filter(None, (content, *calls)))
        if written and role == "user" == written[-1]["role"]:
            written[-1]["content"] += f"\n\n{content}"
        else:
            written.append({**kept, "role": role, "content": content})
    return written
