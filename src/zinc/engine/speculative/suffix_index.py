"""Index of a text by its recent tokens.

`SuffixIndex.find` returns the positions behind the longest match with the end of another text, or
of the text itself. For each of a few orders, positions whose last `order` tokens have the same hash
form a linked list, newest first:

    order 1    12 <- 40 <- 97      the last token is the same
    order 3          40 <- 97      the last three tokens are the same

A search reads the newest positions of a list, a bounded number of them. Common tokens have longer
lists than that; the higher orders find long matches behind many short ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

LONGEST_MATCH = 64
END = -1  # a token that ends a text; no token follows it

_ORDERS = (8, 3, 1)
_MOST_POSITIONS = 32  # of a chain that a search reads
_BUCKET_BITS = 16
_FACTOR = 0x9E3779B1  # odd, near 2**32 / golden ratio
_WORD = 0xFFFFFFFF
_FEW_TOKENS = 32  # below this, plain Python is faster than numpy
_OFFSETS = np.arange(LONGEST_MATCH)
_NOTHING: Tokens = np.empty(0, np.int32)


class _Chains:
    """Positions linked to the previous position at which the last `order` tokens hash alike.

    `heads` has the newest position of each hash, `previous` the next older one of each position.
    Positions start at `LONGEST_MATCH`, after the padding of the text; lower ones end a chain.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self._heads = array("i", bytes(4 << _BUCKET_BITS))
        self._previous = array("i", bytes(4 * LONGEST_MATCH))

    def extend(self, tokens: Tokens, end: int) -> None:
        """Add the positions up to `end` of `tokens` that are not in the chains."""
        begin = len(self._previous)
        if end - begin < _FEW_TOKENS:
            recent = tokens[begin - self.order + 1 : end].tolist()
            for i in range(end - begin):
                bucket = self._bucket(recent[i : i + self.order])
                self._previous.append(self._heads[bucket])
                self._heads[bucket] = begin + i
        else:
            self._extend_many(tokens, begin, end)

    def find(self, recent: Sequence[int], start: int) -> list[int]:
        """Return positions >= `start` that may follow the tokens `recent`, newest first."""
        found: list[int] = []
        position = self._heads[self._bucket(recent[-self.order :])]
        while position >= start and len(found) < _MOST_POSITIONS:
            found.append(position)
            position = self._previous[position]
        return found

    def _bucket(self, tokens: Sequence[int]) -> int:
        hashed = 0
        for token in tokens:
            hashed = (hashed + token) * _FACTOR & _WORD
        return hashed >> 32 - _BUCKET_BITS

    def _extend_many(self, tokens: Tokens, begin: int, end: int) -> None:
        words = tokens.view(np.uint32)
        hashed = np.zeros(end - begin, np.uint32)
        for back in reversed(range(self.order)):
            hashed += words[begin - back : end - back]
            hashed *= np.uint32(_FACTOR)
        buckets = (hashed >> (32 - _BUCKET_BITS)).astype(np.uint16)
        # Sorted by bucket, each position follows the previous one of its chain.
        order = np.argsort(buckets, kind="stable")
        buckets = buckets[order]
        positions = (order + begin).astype(np.int32)
        is_first = np.append(True, buckets[1:] != buckets[:-1])
        is_last = np.append(is_first[1:], True)
        heads = np.frombuffer(self._heads, np.int32)
        previous = np.empty(end - begin, np.int32)
        previous[order] = np.where(is_first, heads[buckets], np.roll(positions, 1))
        heads[buckets[is_last]] = positions[is_last]
        self._previous.frombytes(previous.tobytes())


class SuffixIndex:
    """A text that grows at its end, and may be dropped from its beginning."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._set(tokens)

    def _set(self, tokens: Sequence[int]) -> None:
        self._tokens: Tokens = np.full(4 * LONGEST_MATCH, END, np.int32)
        self._start = self._end = LONGEST_MATCH
        self._chains = [_Chains(order) for order in _ORDERS]
        self.extend(tokens)

    def __len__(self) -> int:
        return self._end - self._start

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text."""
        begin, self._end = self._end, self._end + len(tokens)
        if self._end > len(self._tokens):
            larger = np.full(2 * self._end, END, np.int32)
            larger[:begin] = self._tokens[:begin]
            self._tokens = larger
        self._tokens[begin : self._end] = tokens
        for chains in self._chains:
            chains.extend(self._tokens, self._end)

    def drop(self, n_tokens: int) -> None:
        """Remove the first `n_tokens` tokens of the text."""
        self._tokens[self._start : self._start + n_tokens] = END
        self._start += n_tokens
        if self._start > max(len(self), 16 * LONGEST_MATCH):
            self._set(self._tokens[self._start : self._end].tolist())

    @property
    def last(self) -> Tokens:
        """The last `LONGEST_MATCH` tokens, after END if the text is shorter."""
        return self._tokens[self._end - LONGEST_MATCH : self._end]

    def find(self, last: Tokens, least: int = 1) -> tuple[Tokens, int]:
        """Return the positions behind the longest matches with `last`, and their length.

        last: the last `LONGEST_MATCH` tokens of a text. least: shorter matches need not be found,
        which saves most of the time if there is none. Positions, [matches], are at most
        `_MOST_POSITIONS`, newest first. Without a match, the length is 0.
        """
        recent = last[-max(_ORDERS) :].tolist()
        candidates = [each for each in self._chains if each.order >= least]
        shortest = self._before_end(candidates.pop().find(recent, self._start))
        if not shortest:  # then there is no longer match either
            return _NOTHING, 0
        for chains in candidates:
            found = self._before_end(chains.find(recent, self._start))
            positions, length = self._longest(found, last)
            if length >= chains.order:  # no shorter match can be as long
                return positions, length
        return self._longest(shortest, last)

    def _before_end(self, found: list[int]) -> list[int]:
        """Return `found` without the end of the text, which nothing follows."""
        return found[1:] if found[:1] == [self._end - 1] else found

    def _longest(self, found: list[int], last: Tokens) -> tuple[Tokens, int]:
        """Return the positions behind those of `found` with the longest match, and its length."""
        if not found:
            return _NOTHING, 0
        positions = np.array(found, np.int32)
        differ = self._tokens[positions[:, None] - _OFFSETS] != last[::-1]
        differ |= last[::-1] == END
        lengths = np.where(differ.any(1), differ.argmax(1), LONGEST_MATCH)
        longest = int(lengths.max())
        return positions[lengths == longest] + 1, longest

    def following(self, positions: Tokens, most: int, *, repeats: bool) -> Tokens:
        """Return the tokens from each of `positions` on, [positions, most].

        Beyond the end of the text stands END. With `repeats`, the tokens from the position to the
        end are repeated instead: the text that follows a match of the end with itself.
        """
        steps = np.arange(most)
        if repeats:
            return self._tokens[positions[:, None] + steps % (self._end - positions)[:, None]]
        at = positions[:, None] + steps
        return np.where(at < self._end, self._tokens[np.minimum(at, self._end - 1)], END)
