"""Traits of a chat template: which forms of messages it accepts, found by test renderings.

Templates differ: call arguments as an object or as JSON text, None or "" for no content, one or
several calls in a message, ids of nine characters. Their sources cannot be searched reliably for
this, but a test rendering with known words shows what reaches the prompt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from zinc.chat.template import REASONING_KEYS, ChatTemplate, Message, StoppedError
from zinc.core.dataclass import dataclass
from zinc.core.errors import TemplateError

_USER: Message = {"role": "user", "content": "probe_question"}
_TOOLS: Sequence[Mapping[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "probe_tool",
            "description": "probe_description",
            "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
        },
    }
]
_MAX_SECONDS = 4.0  # for all renderings; each takes a few milliseconds at most


@dataclass(frozen=True)
class TemplateTraits:
    """The forms of messages that a template accepts. The defaults are those of Qwen 3.

    object_arguments, text_arguments: call arguments can be an object; can be JSON text.
    null_content: content can be None in a message with calls.
    content_with_calls: a message with calls can also have text.
    parallel_calls: a message can have several calls.
    short_ids: ids must have nine letters or digits.
    system_role: system messages reach the prompt.
    tools: tools reach the prompt.
    reasoning_key: the key of a message's reasoning; None if reasoning is left out.
    reasoning_with_content: a message with calls can have both reasoning and text.
    """

    object_arguments: bool = True
    text_arguments: bool = True
    null_content: bool = False
    content_with_calls: bool = True
    parallel_calls: bool = True
    short_ids: bool = False
    system_role: bool = True
    tools: bool = True
    reasoning_key: str | None = "reasoning_content"
    reasoning_with_content: bool = True

    @property
    def renders_calls(self) -> bool:
        """Whether calls of earlier answers reach the prompt."""
        return self.object_arguments or self.text_arguments

    @classmethod
    def of(cls, template: ChatTemplate) -> TemplateTraits:
        """Return the traits of `template`, found by about a dozen renderings.

        Raises StoppedError if these take too much time or memory.
        """
        attempt = _Attempt(template)
        null = attempt.calls(None) or ""
        null_content = "probe_first" in null and "None" not in null
        attempt.content = None if null_content else ""
        short_ids = attempt.calls(attempt.content, ids="probe_call_1") is None
        as_object = attempt.calls(attempt.content, {"probe_key": "probe_value"}) or ""
        as_text = attempt.calls(attempt.content, '{"probe_key": "probe_value"}') or ""
        key = next(
            (k for k in REASONING_KEYS if "probe_thought" in attempt.thought(attempt.content, k)),
            None,
        )
        return cls(
            object_arguments="probe_value" in as_object and "{'probe_key'" not in as_object,
            text_arguments="probe_value" in as_text and '\\"probe_key' not in as_text,
            null_content=null_content,
            content_with_calls="probe_first" in (attempt.calls("probe_content") or ""),
            parallel_calls="probe_second" in (attempt.calls(attempt.content, n=2) or ""),
            short_ids=short_ids and attempt.calls(attempt.content) is not None,
            system_role="probe_system"
            in (attempt([{"role": "system", "content": "probe_system"}, _USER]) or ""),
            tools="probe_description" in (attempt([_USER]) or ""),
            reasoning_key=key,
            reasoning_with_content=key is None
            or "probe_thought" in attempt.thought("probe_content", key),
        )


class _Attempt:
    """Renderer of test conversations, which returns None if the template refuses one.

    content: the default content of messages with calls.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._until = time.monotonic() + _MAX_SECONDS
        self.content: str | None = ""

    def __call__(self, messages: Sequence[Message]) -> str | None:
        try:
            text = self._template.render(messages, tools=_TOOLS, enable_thinking=True)
        except StoppedError:
            raise
        except TemplateError:
            text = None
        if time.monotonic() > self._until:
            raise StoppedError(
                f"the chat template of {self._template.name} was stopped",
                f"short conversations took it more than {_MAX_SECONDS:g} s",
                "try another with --chat-template",
            )
        return text

    def calls(
        self,
        content: str | None,
        arguments: object = None,
        n: int = 1,
        ids: str = "probe000",
        extra: Message | None = None,
    ) -> str | None:
        """Render a question, an assistant's message with `n` calls, and their results.

        arguments: the arguments of each call (None: try both forms). ids: prefix of the call ids.
        extra: further members of the assistant's message.
        """
        if arguments is None:
            forms: list[list[object]] = [
                [{"probe_key": "probe_first"}, {"probe_key": "probe_second"}],
                ['{"probe_key": "probe_first"}', '{"probe_key": "probe_second"}'],
            ]
        else:
            forms = [[arguments] * n]
        for form in forms:
            calls = [
                {
                    "id": f"{ids}{index}",
                    "type": "function",
                    "function": {"name": "probe_tool", "arguments": form[index]},
                }
                for index in range(n)
            ]
            results = [
                {"role": "tool", "tool_call_id": call["id"], "name": "probe_tool", "content": "1"}
                for call in calls
            ]
            message: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": calls}
            message |= extra or {}
            text = self([_USER, message, *results])
            if text is not None:
                return text
        return None

    def thought(self, content: str | None, key: str) -> str:
        """Render a message with calls, in which the member `key` holds the reasoning."""
        return self.calls(content, extra={key: "probe_thought"}) or ""
