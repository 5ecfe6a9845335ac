"""The prompt of a conversation: rendered by the chat template, tokenized, cut to the context."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zinc.chat.format import ChatFormat
from zinc.chat.messages import prepare
from zinc.chat.template import is_variable
from zinc.chat.traits import TemplateTraits
from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError, TextTooLongError, UnsupportedError
from zinc.server.apis.shared.chat.request import ChatRequest
from zinc.server.apis.shared.prompts import MAX_COUNTED_TOKENS
from zinc.server.errors import ApiError, invalid
from zinc.server.runtime.served_model import ServedModel
from zinc.tokenizer.specials import SHIELD

_SWITCHES = ("enable_thinking", "add_generation_prompt", "continue_final_message")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: its text and its token ids.

    format: how to read the answer. opened: the marker of the reasoning block that the prompt
    leaves open, or "".
    """

    text: str
    ids: list[int]
    format: ChatFormat
    opened: str


async def prompt_of(
    model: ServedModel, request: ChatRequest, limit: int = MAX_COUNTED_TOKENS
) -> Prompt:
    """Return the prompt of `request`, rendered in another thread.

    At most a few prompts of one model are rendered at a time. Otherwise a template that always
    exceeds its time limit could occupy all threads and render processes.

    Raises ApiError, TemplateError, and TextTooLongError if the prompt has more than `limit` tokens.
    """
    async with model.rendering:
        return await asyncio.to_thread(_fitting_prompt, model, request, limit)


def _fitting_prompt(model: ServedModel, request: ChatRequest, limit: int) -> Prompt:
    """Return the prompt of `request`; with `truncate`, the longest one that fits the context."""
    if not request.truncate:
        return _render(model, request, limit)
    answer = request.params.max_tokens or 1
    room = model.context - min(answer, model.context // 2)
    attempts = list(truncations(request.messages))

    def attempt(n: int) -> Prompt | None:
        """Return the prompt of the `n`th attempt, or None if it is too long."""
        try:
            prompt = _render(model, replace(request, messages=attempts[n]), model.context)
        except TextTooLongError:
            return None
        return prompt if len(prompt.ids) <= room else None

    found = attempt(0)
    low, high = 1, len(attempts)
    while found is None and low < high:
        middle = (low + high) // 2
        if attempt(middle) is None:
            low = middle + 1
        else:
            high = middle
    if found is None and low < len(attempts):
        found = attempt(low)
    return found or _render(model, replace(request, messages=attempts[-1]), limit)


def truncations(messages: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield `messages`, then shorter and shorter versions of the conversation.

    The oldest turns are left out first, then the oldest calls after the last question. System
    messages and the last question always stay.
    """
    yield messages
    roles = [message["role"] for message in messages]
    n_system = next((i for i, r in enumerate(roles) if r not in ("system", "developer")), 0)
    system = messages[:n_system]
    questions = [i for i, role in enumerate(roles) if role == "user" and i > n_system]
    for start in questions:
        yield [*system, *messages[start:]]
    last = questions[-1] if questions else n_system
    calls = [i for i, role in enumerate(roles) if role == "assistant" and i > last]
    for start in calls[1:]:
        yield [*system, messages[last], *messages[start:]]


def _render(model: ServedModel, request: ChatRequest, limit: int) -> Prompt:
    """Return the prompt of all messages of `request`; raises as `prompt_of` does."""
    arguments = _template_variables(request.template_args)
    style = model.chat_style(for_tools=bool(request.tools))
    if request.tools and style.tools_note:  # clients with tools send them to every model
        model.note(f"{style.tools_note}; --chat-template sets another one")
    tokenizer = model.tokenizer
    try:
        prepared = style.prepare(
            model.llm.settings.conversation(request.messages), request.tools or ()
        )
    except (RequestError, UnsupportedError) as error:
        raise _invalid_message(request, style.traits, error) from None
    continued = _continues_last_message(request, arguments, style.format)
    text = style.template.render_shielded(
        tokenizer, prepared, request.tools or None, arguments, continued
    )
    opened = "" if continued else style.format.opened(text)
    ids = tokenizer.encode_prompt(text, limit=limit)
    return Prompt(text.replace(SHIELD, ""), ids, style.format, opened)


def _invalid_message(
    request: ChatRequest, traits: TemplateTraits, error: RequestError | UnsupportedError
) -> ApiError:
    """Return the error for a message of `request` that cannot be prepared.

    `error` counts the messages of a Modelfile too, which the client does not know.
    """
    try:
        prepare(request.messages, traits)
    except (RequestError, UnsupportedError) as own:
        error = own
    where = error.what.split(" ")[0]
    param = where if request.param == "messages" else request.param
    return invalid(param, error.what.replace(where, param, 1), error.why, error.hint)


def _template_variables(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat template variables of a request, checked. Raises ApiError."""
    variables = {}
    for name, value in given.items():
        param = f"chat_template_kwargs.{name[:80]}"
        if not is_variable(name):
            raise invalid(param, f"{param} cannot be set", "it is not a template variable")
        if name in _SWITCHES:
            if value is None:
                continue
            if not isinstance(value, bool):
                raise invalid(param, f"{param} is {str(value)[:40]!r}", "it must be true or false")
        variables[name] = value
    return variables


def _continues_last_message(
    request: ChatRequest, arguments: dict[str, Any], format: ChatFormat
) -> bool:
    """Return whether the answer continues the last message, and not a new message.

    Removes `continue_final_message` from `arguments`. By default a text message of the assistant
    at the end is continued, as llama.cpp's server and Anthropic's API do. Raises ApiError.
    """
    if not request.messages:
        raise invalid(request.param, f"{request.param} is empty", "there is nothing to answer")
    continue_final = arguments.pop("continue_final_message", None)
    adds = arguments.get("add_generation_prompt")
    if continue_final and adds:
        raise invalid(
            "continue_final_message",
            "continue_final_message and add_generation_prompt are both true",
            "an answer either continues the last message or starts a new one",
        )
    if continue_final is False or (continue_final is None and adds is False):
        return False
    last = request.messages[-1]
    is_begun = last["role"] == "assistant" and not last.get("tool_calls") and last.get("content")
    if not is_begun:
        if continue_final:
            raise invalid(
                "continue_final_message",
                "there is no message to continue",
                "the last message must be the assistant's, with text and without calls",
            )
        return False
    if format.header is not None:
        raise invalid(
            request.param,
            "the last message is the assistant's",
            "this model's chat format cannot continue a message",
        )
    return True
