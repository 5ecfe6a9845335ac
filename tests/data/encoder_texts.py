"""Texts of the fixtures of encoders (make_encoder_fixtures.py): fixed ones, and random ones."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEÉÄé0123456789.,!?-'\"()[]$+|«、。你好世界αβγñøßжя한"
TEXTS = (
    "The quick brown fox runs over the lazy dog, and then it swims in the river; undoable things "
    "happen (often) to a dog that is running to the fox.",
    "Un café à la crème, s'il vous plaît!",
    "你好，世界。Hello 你好 world",
    "fox",
    "a" * 90 + " and " + "b" * 101,
    "tab\tnew\nline \u00a0 zero\u200bwidth \x07 bell",
    "",
)
QUERY = "Which animal runs?"
DOCUMENTS = tuple(text for text in TEXTS if text)
_CONTROL = "\t\n\r \u00a0\u2028\u200b\u200d\x00\x01\x1f\x7f\ufffd\ufeff\u3000"
_RANGES = (
    (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00),
    (0xE00, 0xE80), (0x1E00, 0x2100), (0x2190, 0x2600), (0x3000, 0x3200), (0x3400, 0x3500),
    (0x4E00, 0x9FFF), (0xAC00, 0xAD00), (0xF900, 0xFB10), (0xFE30, 0xFE50), (0xFF00, 0xFFEF),
    (0x1D400, 0x1D500), (0x1F300, 0x1F700), (0x20000, 0x20100), (0x2F800, 0x2F900),
)  # fmt: skip


def random_texts(count: int = 3000) -> Iterator[str]:
    """Yield texts of letters that the vocabulary has, and of characters that it lacks."""
    random = Random(11)
    for _ in range(count):
        text = ""
        for _ in range(random.randrange(1, 30)):
            kind = random.randrange(10)
            if kind < 6:
                text += "".join(random.choices(LETTERS[:26] + "dogfx", k=random.randrange(1, 8)))
                text += random.choice(" .")
            elif kind < 8:
                text += random.choice(LETTERS)
            elif kind == 8:
                text += random.choice(_CONTROL)
            else:
                text += chr(random.randrange(*random.choice(_RANGES)))
        yield text


def checksum(ids: Sequence[int]) -> int:
    """Return a checksum of token ids."""
    return zlib.crc32(np.array(ids, "<i4").tobytes())
