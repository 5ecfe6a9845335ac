"""Conversations of `LLM`: messages to a prompt, and the tokens of an answer to a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zinc.chat.events import Answer
from zinc.chat.format import ChatFormat
from zinc.chat.messages import ROLES
from zinc.chat.parser import TokenParser
from zinc.chat.template import ChatTemplate, Message
from zinc.core.dataclass import dataclass
from zinc.llm.arguments import has_text_content
from zinc.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation, and how to read its answer.

    ids: the prompt. tools: of the request. opened: the marker of the reasoning block that the
    prompt leaves open, or "".
    """

    ids: list[int]
    tokenizer: Tokenizer
    format: ChatFormat
    tools: Tools | None
    opened: str

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        format: ChatFormat,
        messages: Sequence[Message],
        tools: Tools | None,
        variables: Mapping[str, Any],
    ) -> ChatPrompt:
        """Render `messages`. variables: of the template, and the switches of `LLM.render`.

        Raises the errors of `ChatTemplate.render`.
        """
        given = dict(variables)
        continues = given.pop("continue_final_message", False)
        text = template.render_shielded(tokenizer, messages, tools, given, continues)
        opened = "" if continues else format.opened(text)
        return cls(tokenizer.encode_prompt(text), tokenizer, format, tools, opened)

    def message(self, token_ids: Sequence[int], stop: Sequence[str]) -> dict[str, Any]:
        """Return an answer as an assistant message of OpenAI's chat API.

        stop: the stop strings of the request.
        """
        parser = TokenParser(self.tokenizer, self.format, self.tools, self.opened, stop)
        events = [event for id in token_ids for event in parser.push(id)]
        return Answer.of([*events, *parser.finish()]).message()


def has_calls(messages: Sequence[Message]) -> bool:
    """Return whether a conversation has tool calls or their results."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


def is_openai_form(messages: Sequence[Message]) -> bool:
    """Return whether roles and contents are those of OpenAI's API, not of one template only."""
    return all(message["role"] in ROLES and has_text_content(message) for message in messages)
