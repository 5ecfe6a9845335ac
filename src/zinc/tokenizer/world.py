"""The tokenizer of RWKV: text is cut from left to right into the longest tokens that fit.

Tokens of the vocabulary RWKV World are sequences of bytes, every single byte among them. GGUF files
spell them like Python (`\\xe4\\xbd`), zinc with the characters of GPT-2 (zinc.tokenizer.bytes).
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain

from zinc.core.errors import ModelError, TextTooLongError
from zinc.tokenizer.bytes import BYTE_OF, spelled
from zinc.tokenizer.fields import Fields
from zinc.tokenizer.vocabulary import TokenKind, Vocabulary, read_vocabulary

# Older files name the format of a chat instead of its template.
WORLD = "rwkv-world"
WORLD_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: "
    "{{ (message.content or '') | trim }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def read_world(fields: Fields) -> Vocabulary:
    """Read the tokens of a file, and spell the normal ones with the characters of GPT-2."""
    vocabulary = read_vocabulary(fields)
    texts = [
        spelled(_unescaped(text)) if kind == TokenKind.NORMAL else text
        for text, kind in zip(vocabulary.texts, vocabulary.kinds.tolist(), strict=True)
    ]
    return replace(vocabulary, texts=texts, ids={text: id for id, text in enumerate(texts)})


def _unescaped(text: str) -> bytes:
    """Return the bytes of a token that the file spells `text`."""
    data = text.encode(errors="replace")
    return _ESCAPE.sub(_escaped_bytes, data) if b"\\" in data else data


def _escaped_bytes(match: re.Match[bytes]) -> bytes:
    found = match[1]
    return bytes([int(found[1:], 16)]) if len(found) == 3 else _NAMED.get(found, found)


class LongestMatchEncoder:
    """Encoder of text without special tokens. Only normal tokens are matched.

    Raises ModelError if the vocabulary lacks a byte.
    """

    covers_all_text = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = vocabulary.texts
        self._ids = {texts[id]: id for id in reversed(vocabulary.of_kind(TokenKind.NORMAL))}
        if lacking := BYTE_OF.keys() - self._ids.keys():
            raise ModelError(
                f"{vocabulary.path} has a damaged tokenizer",
                f"{len(lacking)} bytes have no token",
                "convert the file again",
            )
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], {1}).add(len(text))
        # Lengths of the tokens that start with two characters, longest first.
        self._lengths = {start: sorted(found)[::-1] for start, found in lengths.items()}

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Return the ids of a text.

        Raises TextTooLongError when the number of ids exceeds `limit`.
        """
        found: list[int] = []
        rest, at, ids, lengths = spelled(text.encode()), 0, self._ids, self._lengths
        while at < len(rest):
            for n in chain(lengths.get(rest[at : at + 2], ()), (1,)):
                piece = rest[at : at + n]  # shorter at the end of the text, and a token or none
                if piece in ids:
                    break
            found.append(ids[piece])
            at += len(piece)
            if limit is not None and len(found) > limit:
                raise TextTooLongError(len(found), limit)
        return found
