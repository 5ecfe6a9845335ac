"""A model of the server: loaded, with its runner, chat templates and argument checker."""

from __future__ import annotations

import asyncio
import logging

from zinc.chat.style import ChatStyle
from zinc.engine.limits import check_generates
from zinc.llm import LLM
from zinc.server.errors import ApiError
from zinc.server.runtime.runner import Runner
from zinc.server.runtime.tool_calls.argument_check import ArgumentChecker
from zinc.tokenizer import Tokenizer

log = logging.getLogger("zinc.server")

_RENDERINGS = 2  # prompts of one model rendered at a time; leaves worker processes to other models


class ServedModel:
    """A model that can take requests.

    rendering: held while a prompt is rendered. arguments: checks arguments of forced calls.
    """

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
        """The context length in tokens."""
        return self.llm.context

    def note(self, text: str) -> None:
        """Log a warning about something the model cannot do, once for each `text`."""
        if text not in self._noted:
            self._noted.add(text)
            log.warning("%s: %s", self.name, text)

    def chat_style(self, for_tools: bool = False) -> ChatStyle:
        """Return the chat template and the format of answers.

        for_tools: prefer the template for conversations with tools, if the model has several.
        Raises ApiError if the model has no template, TemplateError if it does not compile, and
        UnsupportedError if the model generates no text.
        """
        check_generates(self.llm.spec.kind)
        if not self.tokenizer.chat_templates:
            raise ApiError(
                400,
                f"the model {self.name!r} has no chat template",
                "it is a base model, or it was converted without one",
                "use /v1/completions, or start the server with --chat-template",
                code="no_chat_template",
            )
        if for_tools not in self._styles:
            # By name, because clients must not see the path of the file.
            self._styles[for_tools] = ChatStyle.of(self.tokenizer, for_tools, self.name)
        return self._styles[for_tools]
