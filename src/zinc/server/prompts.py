"""Prompts that are no conversation: one or several, each of them text or token ids.

OpenAI's endpoints take text as what a user typed, so that no control token is found in it;
llama.cpp's parse them, and take text and ids mixed in one prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zinc.server.errors import context_exceeded, invalid
from zinc.server.pool import LoadedModel

Prompt = str | list[Any] | dict[str, Any]


def several(prompt: Prompt, param: str, most: int) -> list[str | list[Any]]:
    """The prompts of a field that holds one or, in a list without ids, many. Raises ApiError.

    A prompt may be llama.cpp's object {"prompt_string": text}.
    """
    if isinstance(prompt, dict):
        return [_text_of(prompt, param)]
    if isinstance(prompt, str) or any(isinstance(part, int) for part in prompt):
        return [prompt]
    if not 1 <= len(prompt) <= most:
        raise invalid(param, f"{param} holds {len(prompt)} prompts", f"1 to {most} can run")
    return [_text_of(each, f"{param}[{i}]") for i, each in enumerate(prompt)]


def _text_of(prompt: Any, param: str) -> str | list[Any]:
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise invalid(param, f"{param} has multimodal_data", "only text is understood")
        prompt = prompt.get("prompt_string")
    if not isinstance(prompt, str | list):
        raise invalid(param, f"{param} is not valid", "it must be text or token ids")
    return prompt


def encode(
    model: LoadedModel,
    prompt: str | Sequence[Any],
    param: str,
    *,
    parse_special: bool = False,
    room: int = 1,
) -> list[int]:
    """Token ids of one prompt that leaves `room` tokens of the context. Raises ApiError.

    Of text and ids mixed, BOS is added to text at the start only.
    """
    tokenizer = model.tokenizer
    ids: list[int] = []
    for at, part in enumerate([prompt] if isinstance(prompt, str) else prompt):
        if isinstance(part, str):
            ids += tokenizer.encode(part, at == 0, parse_special)
        elif isinstance(part, int) and not isinstance(part, bool):
            ids.append(part)
        else:
            raise invalid(param, f"{param} is not valid", "it holds text and token ids")
    if not ids:
        raise invalid(param, f"{param} is empty", "a model needs at least one token")
    if not 0 <= min(ids) <= max(ids) < model.llm.spec.vocab:
        raise invalid(
            param,
            f"{param} has a token that there is not",
            f"ids lie between 0 and {model.llm.spec.vocab - 1}",
        )
    if len(ids) + room > model.context:
        raise context_exceeded(len(ids), model.context, param)
    return ids
