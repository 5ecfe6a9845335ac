"""Past answers, for drafts of later ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from zinc.engine.speculative.suffix_index import END, SuffixIndex

MOST_TOKENS = 1 << 16


class AnswerStore:
    """The newest answers of each key, `most_tokens` tokens in all.

    A key names a model and the namespace of its prefix cache: answers are only found under the key
    with which they were added.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._indices: dict[bytes, SuffixIndex] = {}
        self._order: deque[tuple[bytes, int]] = deque()
        self._n_tokens = 0

    @property
    def n_tokens(self) -> int:
        """Tokens of all answers, with one END for each."""
        return self._n_tokens

    def add(self, key: bytes, tokens: Sequence[int]) -> None:
        """Add an answer under `key`, and drop the oldest answers if there are too many tokens.

        Only the end of an answer that is longer than the store is kept.
        """
        if self._most_tokens < 2 or not tokens:
            return
        tokens = [*tokens[-(self._most_tokens - 1) :], END]
        while self._n_tokens + len(tokens) > self._most_tokens:
            self._drop_oldest()
        if key not in self._indices:
            self._indices[key] = SuffixIndex()
        self._indices[key].extend(tokens)
        self._order.append((key, len(tokens)))
        self._n_tokens += len(tokens)

    def answers(self, key: bytes) -> SuffixIndex | None:
        """Return the answers under `key`, or None if there are none."""
        return self._indices.get(key)

    def _drop_oldest(self) -> None:
        key, n_tokens = self._order.popleft()
        self._n_tokens -= n_tokens
        self._indices[key].drop(n_tokens)
        if not len(self._indices[key]):
            del self._indices[key]
