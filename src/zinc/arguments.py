"""Checks of the arguments of `LLM`'s methods: prompts, conversations and sampling.

A mistake raises an error in the caller's words before it reaches a template or the engine:
`chat("hi")`, a dict in place of `SamplingParams`, a misspelt role.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias, cast

from zinc.chat.template import ChatTemplate
from zinc.core.errors import RequestError
from zinc.engine.load.options import AdapterOption
from zinc.engine.sampling import SamplingParams

LoraFiles: TypeAlias = (
    str
    | os.PathLike[str]
    | Sequence[str | os.PathLike[str]]
    | Mapping[str, float]
    | Mapping[Path, float]
    | None
)
SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplingParams))
# Roles of the OpenAI API; below, roles of older APIs and of some templates.
ROLES = ("system", "developer", "user", "assistant", "tool")
_OTHER_ROLES = ("function", "ipython", "model", "observation")


def sampling_params(
    params: object, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> SamplingParams:
    """Return `params`, or the `defaults`, with the fields in `given` replaced.

    Raises RequestError for values out of range, or if `params` is not a SamplingParams. Raises
    TypeError for a name in `given` that is not a field.
    """
    if isinstance(params, Mapping):
        written = ", ".join(f"{name}={value!r}" for name, value in params.items())
        raise RequestError(
            "params is a dict",
            "sampling is described by SamplingParams",
            f"write SamplingParams({written}), or pass the fields as keywords: {written}",
        )
    if not isinstance(params, SamplingParams | None):
        raise RequestError(
            f"params is {_with_article(params)}",
            "sampling is described by SamplingParams",
            "write SamplingParams(max_tokens=100), or pass the fields as keywords: max_tokens=100",
        )
    for name in given:
        if name not in SAMPLING_FIELDS:
            raise TypeError(f"unexpected keyword argument {name!r}{_nearest(name)}")
    if params is None:
        return SamplingParams(**{**defaults, **given})
    return replace(params, **given) if given else params


def take_sampling(arguments: dict[str, Any], template: ChatTemplate | None) -> dict[str, Any]:
    """Remove the fields of SamplingParams from `arguments` and return them.

    The rest is meant for `template`, which ignores names that it does not use; None takes no
    arguments. Raises TypeError for a name that is similar to a field's and that the template does
    not use.
    """
    for name in arguments:
        if name in SAMPLING_FIELDS or (template is not None and name in template.source):
            continue
        if template is None or _nearest(name):
            raise TypeError(f"unexpected keyword argument {name!r}{_nearest(name)}")
    return {name: arguments.pop(name) for name in list(arguments) if name in SAMPLING_FIELDS}


def adapter_options(lora: LoraFiles) -> tuple[AdapterOption, ...]:
    """Return the LoRA adapters that the argument `lora` of `LLM` names, with their scales."""
    if lora is None:
        return ()
    if isinstance(lora, str | os.PathLike):
        lora = [lora]
    if not isinstance(lora, Mapping):
        return tuple(AdapterOption(Path(path).expanduser()) for path in lora)
    return tuple(AdapterOption(Path(p).expanduser(), float(x)) for p, x in lora.items())


def is_one_prompt(prompt: object) -> bool:
    """Return whether `prompt` is one prompt, a text or token ids, rather than several.

    Raises RequestError if it is neither.
    """
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, Mapping | bytes) or not hasattr(prompt, "__getitem__"):
        raise RequestError(
            f"the prompt is {_with_article(prompt)}",
            "it must be a str, a list of token ids, or several",
        )
    items = cast("Sequence[object]", prompt)
    if len(items) > 0 and isinstance(items[0], Mapping):
        raise RequestError(
            "the prompt is a list of messages",
            "generate continues text as it is",
            "call chat(messages), or stream(messages)",
        )
    return len(items) > 0 and isinstance(items[0], Integral)


def is_conversation(prompt: object) -> bool:
    """Return whether `prompt` looks like a list of messages."""
    if isinstance(prompt, Mapping):
        return True
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Sequence):
        return False
    return len(prompt) > 0 and isinstance(prompt[0], Mapping)


def check_messages(messages: object, template: ChatTemplate) -> None:
    """Check that `messages` is a list of messages with known roles, and not empty.

    A role is known if it is a common one, or if `template` names it. Raises RequestError.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f"messages is {_with_article(messages)}",
            "a conversation is a list of messages",
            'write chat([{"role": "user", "content": "Hello"}]), or generate(text) for plain text',
        )
    if not messages:
        raise RequestError("messages is empty", "there is nothing to answer", "add a message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(
                f"messages[{i}] is {_with_article(message)}",
                'a message is a dict with a "role" and a "content"',
            )
        if "role" not in message:
            raise RequestError(f"messages[{i}] has no role", f"roles are {', '.join(ROLES)}")
        role = message["role"]
        if role not in (*ROLES, *_OTHER_ROLES) and not _mentions(template, role):
            near = get_close_matches(str(role), ROLES, 1)
            raise RequestError(
                f"messages[{i}] has the role {role!r}",
                f"roles are {', '.join(ROLES)}",
                f"write {near[0]!r}" if near else "",
            )


def _mentions(template: ChatTemplate, role: object) -> bool:
    """Return whether the source of `template` contains `role` as a string."""
    return isinstance(role, str) and bool(
        re.search(rf"""(["']){re.escape(role)}\1""", template.source)
    )


def _nearest(name: str) -> str:
    """Return a question that suggests the most similar field, or nothing."""
    near = get_close_matches(name, sorted(SAMPLING_FIELDS), 1, 0.8)
    return f"; did you mean {near[0]!r}?" if near else ""


def _with_article(value: object) -> str:
    """Return the type of a value as an error names it: "a dict"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
