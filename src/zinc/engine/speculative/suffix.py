"""Drafts from repeated text: the tokens that followed the last ones earlier.

For each length of the match between the end of the text and earlier positions, the most frequent
continuation is followed token by token. A token that followed `count` of `total` matches of
`length` tokens is taken to be right with probability

    count / (total + PRIOR / length),

because a short match says little, even if it is the only one. The draft with the largest expected
number of accepted tokens wins. After SuffixDecoding (arXiv:2411.04975).
"""

from __future__ import annotations

from collections.abc import Sequence

from zinc.engine.speculative.answer_store import AnswerStore
from zinc.engine.speculative.draft import NO_DRAFT, Draft
from zinc.engine.speculative.suffix_index import END, SuffixIndex

PRIOR = 1.5
LEAST_PROBABILITY = 0.3  # of all tokens of a draft together


class SuffixDrafter:
    """Drafts for one sequence, from its own text, past answers and text that was added.

    ids: the prompt. store: past answers, of which those under `key` are searched.
    """

    def __init__(
        self, ids: Sequence[int], store: AnswerStore | None = None, key: bytes = b""
    ) -> None:
        self._text = SuffixIndex(ids)
        self._added: list[SuffixIndex] = []
        self._store = store
        self._key = key

    def add(self, tokens: Sequence[int]) -> None:
        """Search `tokens` too: text that the answer may repeat."""
        self._added.append(SuffixIndex(tokens))

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text."""
        self._text.extend(tokens)

    def draft(self, most: int) -> Draft:
        """Return the draft of at most `most` tokens that promises the most accepted tokens."""
        if most <= 0:
            return NO_DRAFT
        drafts = [self._draft_from(source, most) for source in self._sources()]
        return max(drafts, key=lambda draft: draft.expected)

    def _sources(self) -> list[SuffixIndex]:
        past = None if self._store is None else self._store.answers(self._key)
        return [self._text, *self._added, *([] if past is None else [past])]

    def _draft_from(self, source: SuffixIndex, most: int) -> Draft:
        positions, lengths = source.find(self._text.last)
        if not len(positions):
            return NO_DRAFT
        rows = source.following(positions, most, repeats=source is self._text).tolist()
        best, best_expected = NO_DRAFT, 0.0
        ends = [*(lengths[1:] != lengths[:-1]).nonzero()[0].tolist(), len(rows) - 1]
        for end in ends:
            draft = _most_frequent(rows[: end + 1], int(lengths[end]), most)
            if (expected := draft.expected) > best_expected:
                best, best_expected = draft, expected
        return best


def _most_frequent(rows: list[list[int]], length: int, most: int) -> Draft:
    """Return the draft that follows the most frequent token of `rows` at each position.

    rows: the tokens after each match of `length` tokens, the preferred ones first.
    """
    tokens: list[int] = []
    probabilities: list[float] = []
    product = 1.0
    for i in range(most):
        counts: dict[int, int] = {}
        for row in rows:
            if row[i] != END:
                counts[row[i]] = counts.get(row[i], 0) + 1
        if not counts:
            break
        token = max(counts, key=counts.__getitem__)
        probability = counts[token] / (sum(counts.values()) + PRIOR / (length + i))
        product *= probability
        if product < LEAST_PROBABILITY:
            break
        tokens.append(token)
        probabilities.append(probability)
        rows = [row for row in rows if row[i] == token]
    return Draft(tokens, probabilities)
