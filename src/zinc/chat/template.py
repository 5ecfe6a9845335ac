"""Chat templates: messages → the text that a model was trained to continue.

A template is the Jinja source in a model's metadata. Its markers are control tokens; the same
characters in a message are only text. `ChatTemplate.encode` keeps the two apart, so a message
cannot end its turn or forge a system prompt; `render` alone gives a string, where they look alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2.exceptions import SecurityError, TemplateSyntaxError, UndefinedError

from zinc.chat.sandbox import (
    Budget,
    RefusedError,
    SandboxedTemplates,
    TooExpensiveError,
    Value,
    budget,
)
from zinc.core.errors import TemplateError
from zinc.tokenizer import Tokenizer

Message = Mapping[str, Any]
_MAX_SOURCE_CHARS = 1 << 20


@cache
def _environment() -> SandboxedTemplates:
    return SandboxedTemplates()


class ChatTemplate:
    """A compiled template. Immutable; safe to share between threads.

    `bos_token` and `eos_token` are the texts of these tokens, which templates write themselves.
    `name` is for messages. Raises TemplateError when the source is not valid Jinja.
    """

    def __init__(
        self, source: str, bos_token: str = "", eos_token: str = "", name: str = "the model"
    ) -> None:
        self.source = source
        self.name = name
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        if len(source) > _MAX_SOURCE_CHARS:
            raise TemplateError(
                f"the chat template of {name} has {len(source)} characters",
                f"none needs more than {_MAX_SOURCE_CHARS}",
                _OTHER_WAY,
            )
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            why = f"line {error.lineno}: {error.message}"
            raise self._error("is not valid Jinja", why) from None
        except Exception as error:  # nested too deep for jinja2 or for Python's compiler
            raise self._error("cannot be compiled", _cause(error)) from None

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, for_tools: bool = False) -> ChatTemplate:
        """The template of a model; `for_tools` prefers the one for tools if there are several.

        Raises TemplateError when the model has none.
        """
        source = tokenizer.chat_template
        if for_tools or source is None:
            source = tokenizer.chat_templates.get("tool_use", source)
        if source is None:
            raise TemplateError(
                f"{tokenizer.path} has no chat template",
                "it is a base model, or it was converted without one",
                "give one with {chat_template}, or continue plain text with {raw}",
            )
        bos, eos = (
            "" if id is None else tokenizer.text_of(id)
            for id in (tokenizer.bos_id, tokenizer.eos_id)
        )
        return cls(source, bos, eos, tokenizer.path)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **arguments: Value,
    ) -> str:
        """The prompt as text.

        `arguments` reach the template as they are (`enable_thinking`, `reasoning_effort`,
        `documents`, ...); those that it does not know change nothing. Raises TemplateError when the
        template refuses the messages, fails on them, or takes too much time or memory.
        """
        variables: dict[str, Any] = {
            **self._tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **arguments,
        }
        token = budget.set(Budget())
        try:
            return self._template.render(variables)
        except RefusedError as error:
            raise self._error("does not accept these messages", str(error)) from None
        except TooExpensiveError as error:
            raise self._error("was stopped", str(error)) from None
        except SecurityError as error:
            raise self._error("does what templates may not do", str(error)) from None
        except UndefinedError as error:
            raise self._error("failed on these messages", str(error)) from None
        except Exception as error:  # whatever a stranger's code runs into
            raise self._error("failed on these messages", _cause(error)) from None
        finally:
            budget.reset(token)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **arguments: Value,
    ) -> list[int]:
        """The prompt as token ids, BOS included where the model wants it.

        Control tokens come from the template only: those spelled out in messages and tools stay
        text. Raises TemplateError as `render` does.
        """
        prompt = self.render(
            _shield(messages, tokenizer),
            None if tools is None else _shield(tools, tokenizer),
            add_generation_prompt,
            **arguments,
        )
        return tokenizer.encode_prompt(prompt)

    def _error(self, what: str, why: str) -> TemplateError:
        return TemplateError(f"the chat template of {self.name} {what}", why, _OTHER_WAY)

    def __repr__(self) -> str:
        return f"ChatTemplate({self.name!r}, {len(self.source)} characters)"


_OTHER_WAY = "change the messages, or continue plain text with {raw}"


def _cause(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shield(value: Value, tokenizer: Tokenizer) -> Value:
    """A copy in which every string is shielded; keys too, since templates print them."""
    if isinstance(value, str):
        return tokenizer.shield(value)
    if isinstance(value, Mapping):
        return {_shield(key, tokenizer): _shield(item, tokenizer) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shield(item, tokenizer) for item in value]
    return value
