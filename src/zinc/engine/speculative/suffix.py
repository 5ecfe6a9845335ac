"""Drafts from repeated text: the tokens that followed earlier occurrences of the text's end.

The drafter finds the longest match between the end of the text and earlier positions, and drafts
the most frequent of the tokens behind these positions, token by token. A token that followed
`count` of `total` matches of `length` tokens is estimated to be accepted with probability

    count / (total + PRIOR / length),

because a short match says little, even if it is the only one. The draft with the largest expected
number of accepted tokens wins, if there are several texts. SuffixDecoding (arXiv:2411.04975) is
similar; it compares all lengths of the match, because its probability does not depend on length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from zinc.engine.speculative.answer_store import AnswerStore
from zinc.engine.speculative.draft import NO_DRAFT, Draft
from zinc.engine.speculative.suffix_index import END, SuffixIndex

PRIOR = 1.5
LEAST_PROBABILITY = 0.2  # of all tokens of a draft together


class SuffixDrafter:
    """Drafter for one sequence, from its own text, past answers and text that was added.

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

    def draft(self, most: int, least_match: int = 1) -> Draft:
        """Return the draft of at most `most` tokens that promises the most accepted tokens.

        least_match: look for matches of at least this many tokens, which saves time.
        """
        if most <= 0:
            return NO_DRAFT
        drafts = [self._draft_from(source, most, least_match) for source in self._sources()]
        return max(drafts, key=lambda draft: draft.expected)

    def _sources(self) -> list[SuffixIndex]:
        past = None if self._store is None else self._store.answers(self._key)
        return [self._text, *self._added, *([] if past is None else [past])]

    def _draft_from(self, source: SuffixIndex, most: int, least_match: int) -> Draft:
        positions, length = source.find(self._text.last, least_match)
        if not length:
            return NO_DRAFT
        rows = source.following(positions, most, repeats=source is self._text)
        return _most_frequent(rows.tolist(), length, most)


def _most_frequent(rows: list[list[int]], length: int, most: int) -> Draft:
    """Return the draft that follows the most frequent token of `rows` at each position.

    rows: the tokens behind each match of `length` tokens; the first of equally frequent ones wins.
    """
    remaining = Counter(map(tuple, rows))  # equal rows are followed once
    tokens: list[int] = []
    probabilities: list[float] = []
    product = 1.0
    for i in range(most):
        counts: dict[int, int] = {}
        for row, count in remaining.items():
            counts[row[i]] = counts.get(row[i], 0) + count
        counts.pop(END, None)
        if not counts:
            break
        token = max(counts, key=counts.__getitem__)
        probability = counts[token] / (sum(counts.values()) + PRIOR / (length + i))
        product *= probability
        if product < LEAST_PROBABILITY:
            break
        tokens.append(token)
        probabilities.append(probability)
        if len(remaining) > 1:
            remaining = Counter({row: n for row, n in remaining.items() if row[i] == token})
    return Draft(tokens, probabilities)
