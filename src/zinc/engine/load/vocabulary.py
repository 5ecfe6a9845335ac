"""Comparison of the vocabularies of two model files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from zinc.core.errors import RequestError
from zinc.formats.gguf import GGUFFile
from zinc.tokenizer.vocabulary import TokenKind

_SHOWN = 3  # tokens that differ


def check_vocabulary(draft: GGUFFile, model: GGUFFile) -> None:
    """Raise RequestError if a draft model has another vocabulary than the model.

    Each id must be the same token in both. Padding may differ: ids that a file marks as unused, or
    that only one file has and marks so.
    """
    same = "choose a draft model of the same family for {draft}"
    what = f"{draft.path.name} cannot draft tokens for {model.path.name}"
    ours, theirs = _tokens(draft), _tokens(model)
    differ = [i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b]
    if differ:
        first = ", ".join(
            f"{i} ({_shown(ours, i)} and {_shown(theirs, i)})" for i in differ[:_SHOWN]
        )
        n_tokens = max(len(ours), len(theirs))
        raise RequestError(
            what, f"{len(differ):,} of {n_tokens:,} tokens differ, the first is {first}", same
        )
    for key in ("model", "merges"):
        if _values(draft, key) != _values(model, key):
            raise RequestError(what, f"their tokenizers differ in tokenizer.ggml.{key}", same)


def _tokens(file: GGUFFile) -> list[str | None]:
    """Return the tokens of a file by id; None for unused ones."""
    texts, types = _values(file, "tokens"), _values(file, "token_type")
    unused = {i for i, kind in enumerate(types) if kind == TokenKind.UNUSED}
    return [None if i in unused else str(text) for i, text in enumerate(texts)]


def _values(file: GGUFFile, key: str) -> list[object]:
    """Return the elements of a key of the tokenizer, or its only value; [] if it is missing."""
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _shown(tokens: Sequence[str | None], i: int) -> str:
    token = tokens[i] if i < len(tokens) else None
    return "unused" if token is None else repr(token)
