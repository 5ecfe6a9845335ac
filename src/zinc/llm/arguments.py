"""Checks of the arguments of `LLM`'s methods: prompts, conversations and sampling.

A mistake raises an error in the caller's words before it reaches a template or the engine:
`chat("hi")`, a dict in place of `SamplingParams`, a misspelt role.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias, cast

from zinc.chat.messages import TEXT_PARTS, text_of
from zinc.chat.template import ChatTemplate
from zinc.core.errors import RequestError, UnsupportedError, with_article
from zinc.engine.load.options import AdapterOption
from zinc.engine.sampling import SamplingParams
from zinc.models.parts.context import RopeScaling
from zinc.plan.device_map import DeviceMap

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
# Keys that hold media, and types of parts that are media, in OpenAI's API and in templates.
_MEDIA = (
    "image", "images", "image_url", "audio", "audios", "audio_url", "video", "videos", "video_url",
)  # fmt: skip
_MEDIA_TYPES = (*_MEDIA, "input_image", "input_audio", "file", "input_file")
_SPEAKERS = ("system", "developer", "user", "assistant")  # their content is text
_OTHER_ROLES = ("function", "ipython", "model", "observation")
# Fields of OpenAI's API that are not arguments of `LLM.chat`, and what to do instead.
_API_FIELDS = {
    "function_call": "force a call with constraint=",
    "functions": "pass tools=",
    "max_completion_tokens": "pass max_tokens=",
    "model": "pass it to LLM(...)",
    "n": "call chat for each answer, with different seeds",
    "response_format": "pass the JSON schema as constraint=",
    "stream": "call stream(messages)",
    "tool_choice": "force a call with constraint=, or leave out tools=",
    "top_logprobs": "pass logprobs=",
}


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
            f"params is {with_article(params)}",
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
    arguments. Raises TypeError for a name that the template does not use, if it is similar to a
    field's, or a field of OpenAI's API.
    """
    for name in arguments:
        if name in SAMPLING_FIELDS or (template is not None and name in template.source):
            continue
        if hint := _API_FIELDS.get(name):
            raise TypeError(f"unexpected keyword argument {name!r}: {hint}")
        if template is None or _nearest(name):
            raise TypeError(f"unexpected keyword argument {name!r}{_nearest(name)}")
    return {name: arguments.pop(name) for name in list(arguments) if name in SAMPLING_FIELDS}


def check_file(name: str, value: object, text: str = "the path of a file") -> None:
    """Raise RequestError if the argument `name` of `LLM` is neither `text` nor None."""
    if not isinstance(value, str | os.PathLike | None):
        raise RequestError(
            f"{name} is {with_article(value)}", f"it takes {text}, as a str or a Path"
        )


def check_load(
    rope: object,
    device_map: object,
    options: object,
    prefix_cache: object,
    chat_template: object,
    progress: object,
) -> None:
    """Raise RequestError if one of these arguments of `LLM` has the wrong type."""
    if not isinstance(prefix_cache, bool):
        raise RequestError(f"prefix_cache is {with_article(prefix_cache)}", "it is True or False")
    if not isinstance(chat_template, str | None):
        raise RequestError(
            f"chat_template is {with_article(chat_template)}",
            "it takes the source of a Jinja template",
            "write chat_template=Path(FILE).read_text(), or leave it out",
        )
    if progress is not None and not callable(progress):
        raise RequestError(
            f"progress is {with_article(progress)}",
            "it takes a function of the number of bytes loaded and the total",
            "write progress=lambda done, total: print(done, total), or leave it out",
        )
    for name, value, kind, example in (
        ("rope", rope, RopeScaling, 'RopeScaling("yarn", 4.0)'),
        ("device_map", device_map, DeviceMap, "DeviceMap(gpu_layers=20)"),
        ("options", options, Mapping, '{"device": "vulkan:0"}'),
    ):
        if value is not None and not isinstance(value, kind):
            raise RequestError(
                f"{name} is {with_article(value)}",
                f"it takes a {'dict' if kind is Mapping else kind.__name__}",
                f"write {name}={example}, or leave it out",
            )
    for name, value in options.items() if isinstance(options, Mapping) else ():
        if not isinstance(value, str):
            raise RequestError(
                f"the backend option {name!r} is {with_article(value)}",
                "the values of options are strings",
                f'write "{str(value).lower()}"',
            )


def adapter_options(lora: LoraFiles) -> tuple[AdapterOption, ...]:
    """Return the LoRA adapters that the argument `lora` of `LLM` names, with their scales.

    Raises RequestError if it is something else.
    """
    if lora is None:
        return ()
    if isinstance(lora, str | os.PathLike):
        lora = [lora]
    if not isinstance(lora, Mapping | Sequence):
        raise RequestError(
            f"lora is {with_article(lora)}",
            "it takes the path of a file, a list of paths, or a dict with the scale of each",
        )
    for path in lora:
        check_file("a path in lora", path)
    if not isinstance(lora, Mapping):
        return tuple(AdapterOption(Path(path).expanduser()) for path in lora)
    for path, scale in lora.items():
        if not isinstance(scale, Real):
            raise RequestError(
                f"the scale of {path} in lora is {with_article(scale)}", "it takes a number"
            )
    return tuple(AdapterOption(Path(p).expanduser(), float(x)) for p, x in lora.items())


def check_scales(name: str, scales: object) -> None:
    """Raise RequestError if `scales`, the argument `name`, is neither a dict of numbers nor None.

    scales: of LoRA adapters, by id.
    """
    if not isinstance(scales, Mapping | None):
        raise RequestError(
            f"{name} is {with_article(scales)}",
            "it takes a dict with the scale of each LoRA adapter by its id",
            "write {0: 1.0}",
        )
    for id, scale in (scales or {}).items():
        if not isinstance(scale, Real):
            raise RequestError(
                f"the scale of the adapter {id} is {with_article(scale)}", "it takes a number"
            )


def check_number(name: str, value: object) -> None:
    """Raise RequestError if the argument `name` is neither a whole number nor None."""
    if not isinstance(value, Integral | None):
        raise RequestError(f"{name} is {with_article(value)}", "it takes a whole number")


def prompt_ids(
    ids: object, what: str = "the prompt", form: str = "a str or a list of token ids"
) -> list[int]:
    """Return token ids as a list. Raises RequestError if they are not ids, or no list.

    what, form: the argument and what it takes, named in errors.
    """
    if isinstance(ids, Mapping | bytes | str) or not isinstance(ids, Iterable):
        raise RequestError(f"{what} is {with_article(ids)}", f"it must be {form}")
    items = list(ids)
    for i, id in enumerate(items):
        if not isinstance(id, Integral):
            raise RequestError(
                f"{what} has {with_article(id)} at index {i}", "token ids are whole numbers"
            )
    return items


def is_one_prompt(prompt: object) -> bool:
    """Return whether `prompt` is one prompt, a text or token ids, rather than several.

    Raises RequestError if it is neither.
    """
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, Mapping | bytes) or not hasattr(prompt, "__getitem__"):
        raise RequestError(
            f"the prompt is {with_article(prompt)}",
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

    A role is known if it is a common one, or if `template` names it. Raises RequestError, and
    UnsupportedError for images and other media.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f"messages is {with_article(messages)}",
            "a conversation is a list of messages",
            'write chat([{"role": "user", "content": "Hello"}]), or generate(text) for plain text',
        )
    if not messages:
        raise RequestError("messages is empty", "there is nothing to answer", "add a message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(
                f"messages[{i}] is {with_article(message)}",
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
        _check_text_only(message, f"messages[{i}]")


def check_tools(tools: object) -> None:
    """Raise RequestError if `tools` is neither a list of functions with names nor None."""
    if tools is None:
        return
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise RequestError(f"tools is {with_article(tools)}", "it takes a list of tools")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError(
                f"tools[{i}] is {with_article(tool)}",
                "a tool is a dict that describes a function, as in OpenAI's API",
            )
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"tools[{i}] has no name",
                "the model calls a tool by its name",
                'write {"type": "function", "function": {"name": "get_weather", ...}}',
            )


def with_text(
    messages: Sequence[Mapping[str, Any]], template: ChatTemplate
) -> Sequence[Mapping[str, Any]]:
    """Return `messages` with parts of text joined to one text, as most templates want it.

    A template that reads parts only gets parts. Content with parts that are not text is left to the
    template, and so is data in the message of a tool. Raises RequestError for content that is
    neither text nor parts.
    """
    return [_with_text(each, f"messages[{i}]", template) for i, each in enumerate(messages)]


def _with_text(message: Mapping[str, Any], where: str, template: ChatTemplate) -> Mapping[str, Any]:
    content = message.get("content")
    role = message["role"]
    if isinstance(content, str):
        return message
    if role not in _SPEAKERS and not (content and _is_text(content)):  # data
        return message
    if content is None:
        if role == "assistant":  # it may have calls alone
            return message
        raise RequestError(f"{where} has no content", "every message needs content")
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise RequestError(
            f"{where}.content is {with_article(content)}", "it takes a text or a list of parts"
        )
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise RequestError(
                f"{where}.content[{i}] is not a part with a type",
                "",
                'write {"type": "text", "text": "Hello"}, or give the content as one text',
            )
    if not _is_text(content):
        return message
    text = text_of(content, f"{where}.content")
    if not template.reads_parts(role):
        return {**message, "content": text}
    parts = [{"type": "text", "text": text_of([part], f"{where}.content")} for part in content]
    return {**message, "content": parts}


def has_text_content(message: Mapping[str, Any]) -> bool:
    """Return whether the content of a message is text, parts of text, or missing."""
    content = message.get("content")
    return content is None or isinstance(content, str) or _is_text(content)


def _is_text(content: object) -> bool:
    """Return whether the content of a message is a list of parts that are all text."""
    if not isinstance(content, Sequence) or isinstance(content, str | bytes):
        return False
    return all(isinstance(part, Mapping) and part.get("type") in TEXT_PARTS for part in content)


def _check_text_only(message: Mapping[str, object], where: str) -> None:
    """Raise UnsupportedError if a message has an image or other media.

    A template would leave it out or fail, or write a marker for what the model does not get.
    """
    content = message.get("content")
    parts: list[tuple[str, object]] = [(where, message)]
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts += [(f"{where}.content[{i}]", part) for i, part in enumerate(content)]
    for name, part in parts:
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        held = (key for key in _MEDIA if not _is_empty(part.get(key)))
        media = kind if kind in _MEDIA_TYPES else next(held, None)
        if media is not None:
            raise UnsupportedError(
                f"{name} has {media!r}",
                "the model takes text only",
                "leave it out, or describe it in the text",
            )


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Sequence) and not value)


def _mentions(template: ChatTemplate, role: object) -> bool:
    """Return whether the source of `template` contains `role` as a string."""
    return isinstance(role, str) and bool(
        re.search(rf"""(["']){re.escape(role)}\1""", template.source)
    )


def _nearest(name: str) -> str:
    """Return a question that suggests the most similar field, or nothing."""
    near = get_close_matches(name, sorted(SAMPLING_FIELDS), 1, 0.8)
    return f"; did you mean {near[0]!r}?" if near else ""
