"""Places to cut a long text so that its parts, tokenized one by one, give the ids of the whole.

A tokenizer needs up to 160 bytes of memory for a character it works on. Cut into chunks, a text
needs that for one chunk at a time, and tokenizing can stop as soon as there are too many tokens.

A place is safe when no token can span it and nothing before it changes how the text behind it is
tokenized, and the other way round. Two kinds of places are:

- between two pre-tokens of every pre-tokenizer (`BETWEEN_WORDS`, `BETWEEN_LINES`), because merges
  stay within a pre-token. No pattern looks behind itself, and none looks ahead further than one
  character, so the left part must not end in whitespace that the pattern would group otherwise;
- between two characters that are neighbours in no token of the vocabulary (`Neighbours`), for
  tokenizers whose words are long or that have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise

from zinc.core.errors import RequestError

CHUNK_CHARACTERS = 1 << 16

# Letters of scripts that every pre-tokenizer takes for letters (DeepSeek LLM lists its own).
_SPACED = "A-Za-z\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u0410-\u044f\uac00-\ud7a3"
_UNSPACED = "\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5"
BETWEEN_LINES = r"(?<=\S\n)(?=\S)"
BETWEEN_WORDS = "|".join(
    (
        BETWEEN_LINES,
        f"(?<=[{_SPACED}])(?= [{_SPACED}])",
        f"(?<=[{_UNSPACED}])(?=[、。，！？；：][{_UNSPACED}])",
    )
)


class Neighbours:
    """The pairs of characters that some token of a vocabulary has side by side."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts

    @cached_property
    def _pairs(self) -> frozenset[str]:
        # A quarter of a second for a large vocabulary: made when the first text needs it.
        return frozenset(a + b for text in self._texts for a, b in pairwise(text))

    def parted(self, text: str, start: int, stop: int) -> int | None:
        """Return the first place from `start` to before `stop` that no token spans."""
        pairs = self._pairs
        for at in range(max(1, start), stop):
            if text[at - 1 : at + 1] not in pairs:
                return at
        return None


class Cuts:
    """Cuts texts into chunks of about `CHUNK_CHARACTERS`.

    safe: pattern of the empty string at safe places. neighbours: for texts where that finds none.
    longest: characters that may follow each other without a safe place; such a text would take
    memory and time out of proportion.
    """

    def __init__(self, safe: str, neighbours: Neighbours | None, longest: int) -> None:
        self._safe = re.compile(safe)
        self._neighbours = neighbours
        self._longest = longest

    def chunks(self, text: str) -> Iterator[str]:
        """Yield the parts of a text in order. Raises RequestError when it has no safe place."""
        at = 0
        while len(text) - at > 2 * CHUNK_CHARACTERS:
            end = self._next(text, at + CHUNK_CHARACTERS)
            yield text[at:end]
            at = end
        yield text[at:] if at else text

    def _next(self, text: str, start: int) -> int:
        stop = min(len(text), start + self._longest)
        if found := self._safe.search(text, start, stop):
            return found.start()
        if self._neighbours is not None:
            place = self._neighbours.parted(text, start, stop)
            if place is not None:
                return place
        if stop == len(text):
            return stop
        raise RequestError(
            "the text cannot be tokenized",
            f"it has a stretch of more than {self._longest} characters without a place to cut it, "
            "such as a run of spaces",
            "break it into lines or words",
        )
