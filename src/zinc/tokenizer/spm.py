"""SentencePiece vocabularies with scores (Llama 2, Mistral, Gemma to 3, Phi 3).

Two neighbours merge when their concatenation is a token; the highest score goes first, the
leftmost of equals. There is no merge table, and equal scores are common, so neither the BPE nor the
Unigram model of the `tokenizers` library gives these ids. Merging is cut at word borders that no
token crosses, which changes nothing in the result and lets words be remembered.
"""

from __future__ import annotations

import re
from heapq import heapify, heappop, heappush

from zinc.core.errors import ModelError, TextTooLongError
from zinc.tokenizer.cuts import CHUNK_CHARACTERS, Cuts, Neighbours
from zinc.tokenizer.vocabulary import Vocabulary

SPACE = "▁"
_WORD = re.compile(f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+")
_CROSSING = re.compile(f"[^{SPACE}\0](?={SPACE})")
_REMEMBERED_WORDS = 1 << 16
_LONGEST_REMEMBERED = 64
# Merging takes memory and time in proportion to the word, and a text without spaces is one word, so
# longer words are cut first.
_LONG_WORD = 1 << 10
_LONGEST_RUN = 1 << 17


class ScoreEncoder:
    """Text without special tokens → ids. Raises ModelError when the vocabulary has no scores."""

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
        # Characters c such that some token holds `c▁`: no cut between those.
        self._crossing = frozenset(_CROSSING.findall("\0".join(vocabulary.texts)))
        self._remembered: dict[str, list[int]] = {}
        self._neighbours = Neighbours(vocabulary.texts)
        self._cuts = Cuts(self._border(), self._neighbours, _LONGEST_RUN)
        self.gives_every_character = all(self._bytes)

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Return the ids of a text.

        Raises TextTooLongError soon after there are more than `limit`, RequestError when the text
        has a run of more than 100,000 characters that cannot be cut.
        """
        text = text.replace(" ", SPACE)
        if len(text) <= CHUNK_CHARACTERS:
            return self._encode(text)
        ids: list[int] = []
        for chunk in self._cuts.chunks(text):
            ids += self._encode(chunk)
            if limit is not None and len(ids) > limit:
                raise TextTooLongError(len(ids), limit)
        return ids

    def _border(self) -> str:
        """Return a pattern of the places where a word begins and no token crosses."""
        crossing = "".join(map(re.escape, sorted(self._crossing)))
        return f"(?<=[^{SPACE}{crossing}])(?={SPACE})"

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._words(text):
            known = self._remembered.get(word)
            if known is None:
                known = self._merge(word) if len(word) <= _LONG_WORD else self._merge_long(word)
                if len(word) <= _LONGEST_REMEMBERED:
                    if len(self._remembered) >= _REMEMBERED_WORDS:
                        self._remembered.clear()
                    self._remembered[word] = known
            ids += known
        return ids

    def _words(self, text: str) -> list[str]:
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
        """Merge a word part by part, cut where no token spans."""
        ids: list[int] = []
        at = 0
        while at < len(word):
            end = self._neighbours.parted(word, at + 1, len(word)) or len(word)
            ids += self._merge(word[at:end])
            at = end
        return ids

    def _merge(self, word: str) -> list[int]:
        """Merge one word. Symbols are a linked list in arrays; a merged one is left empty."""
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
            # Stale when either side has merged since: the concatenation is then another.
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
    id = vocabulary.ids.get(f"<0x{byte:02X}>")
    if id is None and byte < 128:
        id = vocabulary.ids.get(chr(byte))
    return fallback if id is None else [id]
