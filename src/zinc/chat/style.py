"""Chat styles: how `LLM` and the server write prompts for a model and read its answers.

A style prepares a conversation for the model's template, and knows the format of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zinc.chat.format import CallText, ChatFormat
from zinc.chat.messages import prepare
from zinc.chat.template import ChatTemplate, Message
from zinc.chat.tool_text import format_for_tools
from zinc.chat.traits import TemplateTraits
from zinc.core.dataclass import dataclass
from zinc.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """A chat template, the form of messages that it accepts, and the format of answers."""

    template: ChatTemplate
    traits: TemplateTraits
    format: ChatFormat

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, for_tools: bool = False, name: str | None = None
    ) -> ChatStyle:
        """Return the style of a model.

        for_tools: for conversations with tools, which may have a template of their own. name: the
        model, named in errors (default: the path of its file). Raises TemplateError if the model
        has no template or it does not compile.
        """
        template = ChatTemplate.from_tokenizer(tokenizer, for_tools)
        if name is not None:
            template.name = name
        traits, format = TemplateTraits.of(template), template.format
        if for_tools and not traits.tools:
            format = format_for_tools(format)
        return cls(template, traits, format)

    @property
    def tools_note(self) -> str | None:
        """The note for a request with tools if the template has no place for them, else None."""
        if self.traits.tools:
            return None
        return "the chat template has no place for tools, so " + (
            "the system prompt describes them"
            if self.format.text
            else "the model does not see them"
        )

    def prepare(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        """Return `messages` of OpenAI's API, with their `tools`, as the template accepts them.

        Raises RequestError for an invalid message, and UnsupportedError for content other than
        text. Both name the message by its index.
        """
        return prepare(messages, self.traits, tools, self._call_text)

    @property
    def _call_text(self) -> CallText | None:
        """Return how calls are written, which earlier messages may have without tools too."""
        return format_for_tools(self.format).text
