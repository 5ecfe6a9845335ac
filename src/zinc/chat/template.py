"""Chat templates: turn messages into the prompt text that a model was trained on.

A template is Jinja source in a model's metadata. It runs in a separate process
(`zinc.chat.renderer`). Markers that the template writes are control tokens; the same characters in
a message are text. `ChatTemplate.encode` keeps them apart, so a message cannot end its turn or
forge a system prompt. `render` returns a string, in which they look the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from zinc.chat.format import ChatFormat
from zinc.chat.formats import detect
from zinc.chat.renderer import SHARED, Renderer, RenderError
from zinc.core.errors import RequestError, TemplateError, with_article
from zinc.tokenizer import Tokenizer

Message = Mapping[str, Any]
Value = Any  # plain data: None, booleans, numbers, text, and lists, tuples and mappings of these

_PROBE = "probe_text"
_PROBED_ROLES = ("system", "developer", "user", "assistant")  # others are taken for the user's
_MAX_SOURCE_CHARS = 1 << 20
_OTHER_MESSAGES = "change the messages, or continue plain text with {raw}"
_OTHER_TEMPLATE = "give another one with {chat_template}, or continue plain text with {raw}"
# Names that clients and templates use for the reasoning of a message.
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
# Variables that callers may not set, and a name that jinja2 uses.
_RESERVED = frozenset({"messages", "tools", "bos_token", "eos_token", "self"})


class StoppedError(TemplateError):
    """A template exceeded its limit of time or memory."""


class ChatTemplate:
    """A compiled chat template. Immutable; safe to share between threads.

    bos_token, eos_token: the texts of these tokens, which templates write. name: the model, named
    in errors. Raises TemplateError if the source is not valid Jinja, and StoppedError if compiling
    takes too much time or memory.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        name: str = "the model",
        renderer: Renderer = SHARED,
    ) -> None:
        self.source = source
        self.name = name
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._renderer = renderer
        self._reads_parts: dict[str, bool] = {}  # by role, when it is known
        if len(source) > _MAX_SOURCE_CHARS:
            raise TemplateError(
                f"the chat template of {name} has {len(source)} characters",
                f"at most {_MAX_SOURCE_CHARS} are accepted",
                _OTHER_TEMPLATE,
            )
        try:
            renderer.check(source)
        except RenderError as error:
            raise self._error(error, _OTHER_TEMPLATE) from None

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, for_tools: bool = False) -> ChatTemplate:
        """Return the template of a model.

        for_tools: prefer the template for tools, if the model has several. Raises TemplateError if
        the model has no template.
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

    @cached_property
    def format(self) -> ChatFormat:
        """The format of answers to prompts of this template."""
        return detect(self.source)

    def reads_parts(self, role: str) -> bool:
        """Return whether messages of `role` need a list of parts, since text would be left out.

        `render` converts text for such templates. Raises StoppedError if a test rendering takes too
        much time or memory.
        """
        role = role if role in _PROBED_ROLES else "user"
        if role not in self._reads_parts:
            self._reads_parts[role] = not self._shows(role, _PROBE) and self._shows(
                role, _parts(_PROBE)
            )
        return self._reads_parts[role]

    def _shows(self, role: str, content: Value) -> bool:
        """Return whether `content`, which has the text `_PROBE`, reaches the prompt."""
        question = self._readable({"role": "user", "content": "question"}) if role != "user" else {}
        before = [question] if role == "assistant" else []
        after = [question] if role != "user" else []
        try:
            text = self._rendered(
                {"messages": [*before, {"role": role, "content": content}, *after]}
            )
        except StoppedError:
            raise
        except TemplateError:  # about the conversation, such as a role that it does not know
            return False
        return _PROBE in text

    def _readable(self, message: Message) -> Message:
        """Return a message in the form that the template reads: text as a part if need be."""
        if not isinstance(message, Mapping):  # the template decides what it is
            return message
        content, role = message.get("content"), message.get("role")
        if isinstance(content, str) and isinstance(role, str) and self.reads_parts(role):
            return {**message, "content": _parts(content)}
        return message

    def render(
        self,
        messages: Sequence[Message],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **arguments: Value,
    ) -> str:
        """Return the prompt as text.

        add_generation_prompt: end the prompt with the beginning of the answer's turn (default:
            true).
        continue_final_message: end the prompt with the last message, which must be the assistant's,
            so that the answer continues it.
        arguments: further variables of the template (`enable_thinking`, `reasoning_effort`,
            `documents`, ...). A template ignores variables that it does not read.
            `enable_thinking` is true by default. A template of an unknown format whose reasoning
            zinc cannot separate from the answer keeps its own default, if it has one.

        Raises TemplateError if the template refuses the messages or fails, StoppedError if it takes
        too much time or memory, and RequestError for contradicting arguments or values that are not
        plain data.
        """
        return self._prompt(
            messages, tools, add_generation_prompt, continue_final_message, arguments, str
        )

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **arguments: Value,
    ) -> list[int]:
        """Return the prompt as token ids, with BOS if the model uses it.

        Only the template can write control tokens: in messages, tools and arguments, the same
        characters are text. Takes the arguments of `render` and raises its errors.
        """
        prompt = self._prompt(
            messages,
            tools,
            add_generation_prompt,
            continue_final_message,
            arguments,
            tokenizer.shield,
        )
        return tokenizer.encode_prompt(prompt)

    def render_shielded(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Value],
        continue_final_message: bool = False,
    ) -> str:
        """Return the prompt as text for `Tokenizer.encode_prompt`.

        Characters of control tokens in messages, tools and arguments are shielded, so that they are
        encoded as text. arguments: variables of the template. Raises the errors of `render`.
        """
        variables = dict(arguments)
        add = variables.pop("add_generation_prompt", None)
        return self._prompt(
            messages, tools, add, continue_final_message, variables, tokenizer.shield
        )

    def _prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        arguments: Mapping[str, Value],
        shield: Callable[[str], str],
    ) -> str:
        for name in arguments:
            if not is_variable(name):
                raise RequestError(f"{name} cannot be set", "it is not a template variable")
        reasoning = begun = ""
        if continue_final_message:
            if add_generation_prompt:
                raise RequestError(
                    "continue_final_message and add_generation_prompt contradict each other",
                    "an answer either continues the last message or starts a new one",
                )
            messages, reasoning, begun = self._split(messages)
            # A message that has text is past its reasoning.
            arguments = {**arguments, "enable_thinking": bool(reasoning)}
        if "enable_thinking" in arguments:  # some templates call it `thinking`
            arguments = {"thinking": arguments["enable_thinking"], **arguments}
        variables = {
            "messages": [self._readable(message) for message in messages],
            "tools": tools,
            "add_generation_prompt": continue_final_message or add_generation_prompt is not False,
            **arguments,
        }
        text = self._rendered(variables, shield)
        if continue_final_message:
            text += self._reasoning(text, shield(reasoning)) + shield(begun)
        return text

    def _rendered(self, variables: dict[str, Value], shield: Callable[[str], str] = str) -> str:
        """Return the output of the template for `variables`, and for others at their defaults."""
        variables = {"tools": None, "documents": None, "add_generation_prompt": True, **variables}
        if self.format.thinking is not None:  # reasoning is separated from the answer
            variables.setdefault("enable_thinking", variables.get("thinking", True))
        try:
            plain = {name: _plain(value, shield) for name, value in variables.items()}
            return self._renderer.render(self.source, {**self._tokens, **plain})
        except RenderError as error:
            raise self._error(error) from None
        except _NotPlainError as error:
            raise RequestError(
                f"a chat template cannot take {error}",
                "its variables are plain data, as in JSON",
                "convert it to dictionaries, lists, text and numbers",
            ) from None
        except (RecursionError, ValueError):  # the latter is marshal's
            raise RequestError(
                "the variables for the chat template are nested too deeply"
            ) from None

    def _split(self, messages: Sequence[Message]) -> tuple[Sequence[Message], str, str]:
        """Return the messages before the last one, and the reasoning and text of the last one."""
        last = messages[-1] if messages else {}
        begun = last.get("content")
        if last.get("role") != "assistant" or not isinstance(begun, str) or last.get("tool_calls"):
            raise RequestError(
                "there is no message to continue",
                "the last message must be the assistant's, with text and without calls",
            )
        if self.format.header is not None:
            raise RequestError(
                "the last message cannot be continued",
                f"the model's chat format ({self.format.name}) cannot continue a message",
            )
        reasoning = next((last[key] for key in REASONING_KEYS if last.get(key)), "")
        thinking = self.format.thinking
        has_place = thinking is not None and not thinking.anywhere and thinking.end in self.source
        if not has_place or not isinstance(reasoning, str):
            reasoning = ""
        return messages[:-1], reasoning, begun

    def _reasoning(self, prompt: str, reasoning: str) -> str:
        """Return the text to add to `prompt` for a message with this reasoning, up to its text."""
        thinking = self.format.thinking
        is_opened = bool(self.format.opened(prompt))
        if thinking is None or not (is_opened or reasoning):
            return ""
        begin = "" if is_opened else f"{thinking.begin}\n"
        end = f"\n{thinking.end}" if reasoning else thinking.end
        return begin + reasoning.strip("\n") + end + thinking.resume

    def _error(self, error: RenderError, hint: str = _OTHER_MESSAGES) -> TemplateError:
        kind = StoppedError if error.stopped else TemplateError
        return kind(f"the chat template of {self.name} {error.what}", error.why, hint)

    def __repr__(self) -> str:
        return f"ChatTemplate({self.name!r}, {len(self.source)} characters)"


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def is_variable(name: str) -> bool:
    """Return whether callers may set the template variable `name`."""
    return name.isidentifier() and name not in _RESERVED


class _NotPlainError(Exception):
    """A value that is not plain data."""


def _plain(value: Value, shield: Callable[[str], str]) -> Value:
    """Return a copy of `value` made of built-in types, with all texts and keys shielded."""
    if isinstance(value, str):
        return shield(str.__str__(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key, shield): _plain(item, shield) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, shield) for item in value]
    if isinstance(value, tuple):
        return tuple([_plain(item, shield) for item in value])
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise _NotPlainError(with_article(value))
