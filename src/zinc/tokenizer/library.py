"""Calls of the `tokenizers` library, which panics where it should raise an error."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from zinc.core.errors import RequestError
from zinc.core.native import is_panic

# Longer text is encoded as a batch of one, since only batches let other threads run.
LONG_CHARACTERS = 4096


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of `text` without special tokens. Raises RequestError if the library fails."""
    try:
        if len(text) <= LONG_CHARACTERS:
            encoding = tokenizer.encode(text, add_special_tokens=False)
        else:
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _failure() from error
    ids: list[int] = encoding.ids
    return ids


def ids_of_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each of `texts`, as `ids_of` does; the library uses several threads."""
    try:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _failure() from error
    return [encoding.ids for encoding in encodings]


def _failure() -> RequestError:
    return RequestError("the text cannot be tokenized", "the tokenizer library failed on it")
