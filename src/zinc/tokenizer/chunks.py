"""Division of long texts into chunks whose token ids, in order, are those of the whole text.

A tokenizer needs up to 160 bytes of memory a character. With chunks, only one of them is in memory
at a time, and tokenizing can stop as soon as there are too many tokens.

A position is safe to cut at if no token can span it and the tokens on either side do not depend on
the other side. These positions are safe:

- between two pre-tokens of every pre-tokenizer (`BETWEEN_WORDS`, `BETWEEN_LINES`), because merges
  stay within a pre-token. No pattern looks behind or ahead further than one character or a run of
  digits, so it is enough that the left part does not end in whitespace that could be
  grouped differently;
- between two characters that are adjacent in no token of the vocabulary (`AdjacentPairs`), for
  tokenizers with long words or without words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise

from zinc.core.errors import RequestError

CHUNK_CHARACTERS = 1 << 16

# Characters that all pre-tokenizers treat as letters (DeepSeek LLM lists its own).
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


class AdjacentPairs:
    """The pairs of characters that are adjacent in some token of a vocabulary."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts

    @cached_property
    def _pairs(self) -> frozenset[str]:
        # Takes a quarter of a second for a large vocabulary, so computed on first use.
        return frozenset(a + b for text in self._texts for a, b in pairwise(text))

    def first_gap(self, text: str, start: int, stop: int) -> int | None:
        """Return the first position in [start, stop) that no token spans, or None."""
        pairs = self._pairs
        for at in range(max(1, start), stop):
            if text[at - 1 : at + 1] not in pairs:
                return at
        return None


class Chunker:
    """Splitter of long texts into chunks of about `CHUNK_CHARACTERS`.

    safe: pattern that matches the empty string at safe positions. pairs: used if `safe` finds none.
    longest: most characters without a safe position; longer runs would take too much memory and
    time.
    """

    def __init__(self, safe: str, pairs: AdjacentPairs | None, longest: int) -> None:
        self._safe = re.compile(safe)
        self._pairs_of_tokens = pairs
        self._longest = longest

    def chunks(self, text: str) -> Iterator[str]:
        """Yield the chunks of a text. Raises RequestError for a run longer than `longest`."""
        at = 0
        while len(text) - at > 2 * CHUNK_CHARACTERS:
            end = self._next(text, at + CHUNK_CHARACTERS)
            yield text[at:end]
            at = end
        yield text[at:] if at else text

    def _next(self, text: str, start: int) -> int:
        """Return the first safe position >= `start`, or the end of the text."""
        stop = min(len(text), start + self._longest)
        if found := self._safe.search(text, start, stop):
            return found.start()
        if self._pairs_of_tokens is not None:
            place = self._pairs_of_tokens.first_gap(text, start, stop)
            if place is not None:
                return place
        if stop == len(text):
            return stop
        raise RequestError(
            "the text cannot be tokenized",
            f"it has more than {self._longest} characters without a word or line break, "
            "such as a run of spaces",
            "break it into lines or words",
        )
