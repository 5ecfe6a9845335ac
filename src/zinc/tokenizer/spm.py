"""SentencePiece tokenization by scores (Llama 2, Mistral, Gemma up to 3, Phi 3).

Two adjacent symbols merge if their concatenation is a token. The highest score merges first, and
the leftmost of equal scores. There is no merge table and equal scores are common, so neither the
BPE nor the Unigram model of the `tokenizers` library gives the same ids. Text is first split at
word boundaries that no token crosses; the result is the same, and words can be cached.
"""

from __future__ import annotations

import re
from heapq import heapify, heappop, heappush

from zinc.core.errors import ModelError, TextTooLongError
from zinc.tokenizer.chunks import CHUNK_CHARACTERS, AdjacentPairs, Chunker
from zinc.tokenizer.vocabulary import Vocabulary

SPACE = "▁"
_WORD = re.compile(f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+")
_CROSSING = re.compile(f"[^{SPACE}\0](?={SPACE})")
_CACHED_WORDS = 1 << 16
_LONGEST_CACHED = 64
# Memory and time of merging grow with the word, and a text without spaces is one word. So longer
# words are split first.
_LONG_WORD = 1 << 10
_LONGEST_RUN = 1 << 17


class ScoreEncoder:
    """SentencePiece encoder of text without special tokens, which merges by score.

    unk_id: id for characters that the vocabulary cannot spell. Raises ModelError if the vocabulary
    has no scores.
    """

    def __init__(self, vocabulary: Vocabulary, unk_id: int | None) -> None:
        if vocabulary.scores is None:
            raise ModelError(
                f"{vocabulary.path} has a damaged tokenizer",
                "a SentencePiece vocabulary needs the metadata key tokenizer.ggml.scores",
                "convert the file again",
            )
        self._ids = vocabulary.ids
        self._costs: list[float] = (-vocabulary.scores).tolist()
        fallback = [] if unk_id is None else [unk_id]
        self._bytes = [_byte_ids(vocabulary, byte, fallback) for byte in range(256)]
        # Characters c for which a token contains `c▁`: no split between them.
        self._crossing = frozenset(_CROSSING.findall("\0".join(vocabulary.texts)))
        self._cache: dict[str, list[int]] = {}
        self._pairs_of_tokens = AdjacentPairs(vocabulary.texts)
        self._chunker = Chunker(self._border(), self._pairs_of_tokens, _LONGEST_RUN)
        self.covers_all_text = all(self._bytes)

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Return the ids of a text.

        Raises TextTooLongError soon after the number of ids exceeds `limit`, and RequestError if
        the text has more than 100,000 characters without a place to cut it.
        """
        text = text.replace(" ", SPACE)
        if len(text) <= CHUNK_CHARACTERS:
            return self._encode(text)
        ids: list[int] = []
        for chunk in self._chunker.chunks(text):
            ids += self._encode(chunk)
            if limit is not None and len(ids) > limit:
                raise TextTooLongError(len(ids), limit)
        return ids

    def _border(self) -> str:
        """Return a pattern of the positions where a word begins and no token crosses."""
        crossing = "".join(map(re.escape, sorted(self._crossing)))
        return f"(?<=[^{SPACE}{crossing}])(?={SPACE})"

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._words(text):
            known = self._cache.get(word)
            if known is None:
                known = self._merge(word) if len(word) <= _LONG_WORD else self._merge_long(word)
                if len(word) <= _LONGEST_CACHED:
                    if len(self._cache) >= _CACHED_WORDS:
                        self._cache.clear()
                    self._cache[word] = known
            ids += known
        return ids

    def _words(self, text: str) -> list[str]:
        """Split a text before spaces, except where a token crosses."""
        words: list[str] = _WORD.findall(text)
        if self._crossing.isdisjoint(word[-1] for word in words):
            return words
        joined = [""]
        for word in words:
            if joined[-1][-1:] in self._crossing:
                joined[-1] += word
            else:
                joined.append(word)
        return [word for word in joined if word]

    def _merge_long(self, word: str) -> list[int]:
        """Merge a word part by part, split at positions that no token spans."""
        ids: list[int] = []
        at = 0
        while at < len(word):
            end = self._pairs_of_tokens.first_gap(word, at + 1, len(word)) or len(word)
            ids += self._merge(word[at:end])
            at = end
        return ids

    def _merge(self, word: str) -> list[int]:
        """Return the ids of one word.

        Symbols form a linked list in arrays; the right one of a merged pair becomes empty.
        """
        symbols = list(word)
        after = [*range(1, len(symbols)), -1]
        before = list(range(-1, len(symbols) - 1))
        ids, costs = self._ids, self._costs

        queue: list[tuple[float, int, str]] = []
        for left in range(len(symbols) - 1):
            pair = symbols[left] + symbols[left + 1]
            if (id := ids.get(pair)) is not None:
                queue.append((costs[id], left, pair))
        heapify(queue)
        while queue:
            _, left, pair = heappop(queue)
            right = after[left]
            # Stale if either side has merged since: the concatenation then differs.
            if right < 0 or not symbols[left] or symbols[left] + symbols[right] != pair:
                continue
            symbols[left], symbols[right] = pair, ""
            beyond = after[left] = after[right]
            if beyond >= 0:
                before[beyond] = left
                longer = pair + symbols[beyond]
                if (id := ids.get(longer)) is not None:
                    heappush(queue, (costs[id], left, longer))
            if (previous := before[left]) >= 0:
                longer = symbols[previous] + pair
                if (id := ids.get(longer)) is not None:
                    heappush(queue, (costs[id], previous, longer))

        result: list[int] = []
        for symbol in symbols:
            if not symbol:
                continue
            if (id := ids.get(symbol)) is not None:
                result.append(id)
            else:
                for byte in symbol.encode():
                    result += self._bytes[byte]
        return result


def _byte_ids(vocabulary: Vocabulary, byte: int, fallback: list[int]) -> list[int]:
    """Return the ids for a byte: that of its token, else `fallback`."""
    id = vocabulary.ids.get(f"<0x{byte:02X}>")
    if id is None and byte < 128:
        id = vocabulary.ids.get(chr(byte))
    return fallback if id is None else [id]
