"""Prompts of completions and embeddings: text, token ids, or a list of prompts.

OpenAI's endpoints treat text as user input and parse no control tokens in it; llama.cpp's endpoints
do. A prompt may also mix text and token ids, or be one of llama.cpp's objects:

    {"prompt_string": "text"}    {"content": [{"type": "text", "text": "some "}, ...]}

or one of Jina's, {"text": "text"}.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from zinc.core.errors import TextTooLongError
from zinc.server.errors import context_exceeded, invalid
from zinc.server.runtime.served_model import ServedModel

# Limit for requests that only count or list tokens, and for the prompts of one request together.
MAX_COUNTED_TOKENS = 1 << 20

Prompt = str | list[Any] | dict[str, Any]


def as_list(prompt: Prompt, param: str, most: int) -> list[str | list[Any]]:
    """Return the prompts in `prompt`, the value of the field `param`.

    A list with token ids is one prompt, any other list holds at most `most` prompts. Raises
    ApiError for other values.
    """
    if isinstance(prompt, dict):
        return [_text_of(prompt, param)]
    if isinstance(prompt, str) or any(isinstance(part, int) for part in prompt):
        return [prompt]
    if not 1 <= len(prompt) <= most:
        raise invalid(param, f"{param} holds {len(prompt)} prompts", f"1 to {most} are allowed")
    return [_text_of(each, f"{param}[{i}]") for i, each in enumerate(prompt)]


def _text_of(prompt: Any, param: str) -> str | list[Any]:
    """Return the text or the token ids of one prompt, which may be an object of llama.cpp."""
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise invalid(param, f"{param} has multimodal_data", "only text is supported")
        if "content" in prompt:
            return _joined(prompt["content"], f"{param}.content")
        prompt = prompt.get("prompt_string", prompt.get("text"))
    if not isinstance(prompt, str | list):
        raise invalid(param, f"{param} is not valid", "it must be text or token ids")
    return prompt


def _joined(parts: Any, param: str) -> str:
    """Return the texts of llama.cpp's content parts as one string."""
    if not isinstance(parts, list):
        raise invalid(param, f"{param} is not valid", "it must be a list of parts")
    texts = []
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if kind == "text" else None
        if not isinstance(text, str):
            raise invalid(f"{param}[{i}]", f"{param}[{i}] is not valid", "only text is supported")
        texts.append(text)
    return "".join(texts)


def limited(model: ServedModel, found: Iterable[list[int]], param: str) -> list[list[int]]:
    """Return the encoded prompts of one request as a list.

    Raises ApiError if they have more than a million tokens together (or more than a context, if
    that is larger), because lists of ids take 40 bytes of memory per token.
    """
    most = max(MAX_COUNTED_TOKENS, model.context)
    prompts: list[list[int]] = []
    n_tokens = 0
    for ids in found:
        n_tokens += len(ids)
        if n_tokens > most:
            raise invalid(
                param, f"{param} has more than {most} tokens in all", "", "send several requests"
            )
        prompts.append(ids)
    return prompts


def encode(
    model: ServedModel,
    prompt: str | Sequence[Any],
    param: str,
    *,
    parse_special: bool = False,
    room: int = 1,
) -> list[int]:
    """Return the token ids of `prompt`, the value of the field `param`.

    parse_special: parse control tokens in text. room: tokens of the context that must stay free. If
    text and ids are mixed, only a text at the start gets a BOS token. Raises ApiError.
    """
    tokenizer = model.tokenizer
    ids: list[int] = []
    parts = [prompt] if isinstance(prompt, str) else prompt
    n_parts = len(parts)
    for at, part in enumerate(parts):
        if isinstance(part, str):
            limit = max(0, model.context - len(ids))
            try:
                ids += tokenizer.encode(part, at == 0, parse_special, limit=limit)
            except TextTooLongError as error:
                raise context_exceeded(
                    len(ids) + error.n_tokens,
                    model.context,
                    param,
                    at_least=not error.is_exact or at + 1 < n_parts,
                ) from None
        elif isinstance(part, int) and not isinstance(part, bool):
            ids.append(part)
        else:
            raise invalid(param, f"{param} is not valid", "it holds text and token ids")
    return checked(model, ids, param, room)


def checked(model: ServedModel, ids: list[int], param: str, room: int) -> list[int]:
    """Return the ids of a prompt if the model can run them, else raise ApiError.

    param, room: as in `encode`.
    """
    if not ids:
        raise invalid(param, f"{param} is empty", "a model needs at least one token")
    if not 0 <= min(ids) <= max(ids) < model.llm.spec.vocab:
        raise invalid(
            param,
            f"{param} has an unknown token id",
            f"ids lie between 0 and {model.llm.spec.vocab - 1}",
        )
    if len(ids) + room > model.context:
        raise context_exceeded(len(ids), model.context, param)
    return ids
