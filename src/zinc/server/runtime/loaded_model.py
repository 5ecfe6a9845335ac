"""A loaded model: its runner, its chat templates, and how many prompts it renders at once."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from zinc.chat.format import ChatFormat
from zinc.chat.template import ChatTemplate
from zinc.chat.tools import detect
from zinc.chat.traits import TemplateTraits
from zinc.llm import LLM
from zinc.server.errors import ApiError
from zinc.server.runtime.runner import Runner
from zinc.server.runtime.tool_calls.argument_check import ArgumentChecker
from zinc.tokenizer import Tokenizer

log = logging.getLogger("zinc.server")

_RENDERINGS = 2  # prompts of one model that are rendered at a time, with workers left for others


class LoadedModel:
    """A model that can take requests."""

    def __init__(self, name: str, llm: LLM, runner: Runner) -> None:
        self.name = name
        self.llm = llm
        self.runner = runner
        self.rendering = asyncio.Semaphore(_RENDERINGS)
        self.arguments = ArgumentChecker()
        self._noted: set[str] = set()
        self._styles: dict[bool, ChatStyle] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        return self.llm.tokenizer

    @property
    def context(self) -> int:
        return self.llm.context

    def note(self, text: str) -> None:
        """Log what a request asked of the model in vain, once for each text."""
        if text not in self._noted:
            self._noted.add(text)
            log.warning("%s: %s", self.name, text)

    def chat_style(self, for_tools: bool = False) -> ChatStyle:
        """How it chats. Raises ApiError when it has no template, TemplateError for a broken one."""
        if not self.tokenizer.chat_templates:
            raise ApiError(
                400,
                f"the model {self.name!r} has no chat template",
                "it is a base model, or it was converted without one",
                "use /v1/completions, or start the server with --chat-template",
                code="no_chat_template",
            )
        if for_tools not in self._styles:
            template = ChatTemplate.from_tokenizer(self.tokenizer, for_tools=for_tools)
            template.name = self.name  # clients know it by this name, and not its path
            self._styles[for_tools] = ChatStyle(
                template, TemplateTraits.of(template), detect(template.source)
            )
        return self._styles[for_tools]


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """A chat template, what it wants its messages to be, and the format of answers."""

    template: ChatTemplate
    traits: TemplateTraits
    format: ChatFormat
