"""DRY ("don't repeat yourself"): a penalty on the token that would extend a verbatim repetition.

If the last n tokens of the text occurred before, the token that followed them there loses
multiplier · base^(n - allowed length); description: oobabooga/text-generation-webui, PR 5677.
`Suffixes` follows n for every earlier position as tokens arrive. A prompt takes one linear pass
(Z algorithm), a token one vector operation: appending t extends the match that ends at j by one
if t is also the token after j, and ends it otherwise.

    history   a b c c b c y a b c        the match of 3 before the 2nd c: `a b c` was there, too,
    length    0 0 3 1 0 2 0 0 0          so c would now repeat 4 tokens
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from zinc.engine.sampling.candidates import Candidates, Floats, Positions
from zinc.engine.sampling.penalties import locate, rewrite

MAX_TAIL_TOKENS = 20
"""Tokens of a sequence breaker after its first; bounds the work for a token."""

_LN_FLOAT32_MAX = 88.7228391
_FEW_TOKENS = (
    32  # up to this many, one vector operation each is faster than a pass over the history
)


class Suffixes:
    """For every position of a growing history: the longest match with the history's end."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self._history = np.empty(1024, np.int64)
        self._lengths = np.zeros(1024, np.int64)

    @property
    def history(self) -> Positions:
        """All tokens so far, [size]."""
        return self._history[: self.size]

    @property
    def lengths(self) -> Positions:
        """Matched tokens that end at each position but the last, [size - 1]."""
        return self._lengths[: max(self.size - 1, 0)]

    def extend(self, tokens: Sequence[int], window: int | None = None) -> None:
        """Append many tokens at once.

        window: update only the lengths of the last `window` tokens.
        """
        self._reserve(len(tokens))
        self._history[self.size : self.size + len(tokens)] = tokens
        self.size += len(tokens)
        start = 0 if window is None else max(0, self.size - window)
        recent: list[int] = self._history[start : self.size].tolist()
        self._lengths[start : self.size] = z_lengths(recent[::-1])[::-1]

    def append(self, token: int, window: int | None = None) -> None:
        """Append one token."""
        self._reserve(1)
        self._history[self.size] = token
        self.size += 1
        start = 0 if window is None else max(0, self.size - window - 1)
        lengths = self._lengths[start : self.size - 1]
        extended = np.ones_like(lengths)
        extended[1:] += lengths[:-1]
        extended *= self._history[start : self.size - 1] == token
        lengths[:] = extended

    def _reserve(self, count: int) -> None:
        while self.size + count > self._history.size:
            self._history = np.concatenate([self._history, np.empty_like(self._history)])
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths)])


def z_lengths(tokens: Sequence[int]) -> NDArray[np.int64]:
    """Return, for each i > 0, the length of the common prefix of tokens[i:] and tokens; 0 at i = 0.

    The Z function (Gusfield 1997, section 1.4). It is linear, because no token is compared again
    once a match has passed it. Returns int [len(tokens)].
    """
    n = len(tokens)
    lengths = [0] * n
    left = right = 0  # tokens[left:right] is the match with the largest end
    for i in range(1, n):
        length = min(lengths[i - left], right - i) if i < right else 0
        if i + length >= right:
            while i + length < n and tokens[length] == tokens[i + length]:
                length += 1
            left, right = i, i + length
        lengths[i] = length
    return np.array(lengths, np.int64)


class Breakers:
    """How many tokens ago the last breaker began; matches do not reach across it.

    A breaker is a sequence of token ids, usually a single one. If several are complete, the one
    that starts last counts, in its longest form.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._by_last: dict[int, list[tuple[int, ...]]] = {}
        for sequence in {tuple(s) for s in sequences if s}:
            self._by_last.setdefault(sequence[-1], []).append(sequence)
        self.single = frozenset(last for last, all_ in self._by_last.items() if (last,) in all_)
        self.clear()

    def clear(self) -> None:
        self.start = -1
        self.end = -1

    def follow(self, history: Positions, new: int) -> None:
        """Update the latest breaker in `history` with its new tokens, history[new:]."""
        for end, token in enumerate(history[new:].tolist(), new + 1):
            for sequence in self._by_last.get(token, ()):
                start = end - len(sequence)
                latest = start >= max(self.start, 0)
                if latest and np.array_equal(history[start:end], sequence):
                    self.start, self.end = start, end


class Dry:
    """The sampler `dry`. last_n: -1 looks at the whole history. A multiplier of 0 is neutral."""

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Iterable[Sequence[int]] = (),
    ) -> None:
        self._multiplier = multiplier
        self._base = base
        self._allowed = allowed_length
        self._window = None if last_n < 0 else last_n
        self._suffixes = Suffixes()
        self._breakers = Breakers(breakers)
        # base ** exponent stays within float32
        self._max_exponent = int(_LN_FLOAT32_MAX / math.log(base)) if base > 1.000001 else 0

    def accept(self, tokens: Sequence[int]) -> None:
        size = self._suffixes.size
        if len(tokens) <= _FEW_TOKENS:
            for token in tokens:
                self._suffixes.append(token, self._window)
        else:
            self._suffixes.extend(tokens, self._window)
        self._breakers.follow(self._suffixes.history, size)

    def reset(self) -> None:
        self._suffixes.clear()
        self._breakers.clear()

    def __call__(self, candidates: Candidates) -> Candidates:
        ids, repeats = self.repetitions()
        if ids.size == 0:
            return candidates
        candidates, found, where = locate(candidates, ids)
        exponent = repeats[found] - self._allowed
        if self._max_exponent:
            exponent = np.minimum(exponent, self._max_exponent)
        growth = self._multiplier * np.power(self._base, exponent)
        # Finite, so that the token can be chosen if no other one is allowed.
        penalty = np.minimum(growth, np.finfo(np.float32).max / 4).astype(np.float32)
        logits: Floats = candidates.logits[where] - penalty
        return rewrite(candidates, where, logits)

    def repetitions(self) -> tuple[Positions, Positions]:
        """Return the tokens that would continue a repetition of at least the allowed length.

        Returns their ids, and the length of the longest repetition that each would extend, both
        [n].
        """
        none = np.empty(0, np.int64)
        size = self._suffixes.size
        start = 0 if self._window is None else max(0, size - self._window)
        limit = size - start
        if limit <= self._allowed:
            return none, none
        if self._breakers.start >= start:
            limit = size - self._breakers.end
        if limit < self._allowed:
            return none, none
        # A match ends at the window and at a breaker.
        room = np.arange(1, size - start)
        lengths = np.minimum(self._suffixes.lengths[start:], np.minimum(room, limit))
        at = np.flatnonzero(lengths >= self._allowed)
        following, lengths = self._suffixes.history[start + at + 1], lengths[at]
        # The longest length of each token: sort by token and length, take the last of each run.
        order = np.lexsort((lengths, following))
        following, lengths = following[order], lengths[order]
        longest = np.flatnonzero(np.diff(following, append=-1))
        ids, lengths = following[longest], lengths[longest]
        allowed = np.array([int(i) not in self._breakers.single for i in ids], np.bool_)
        return ids[allowed], lengths[allowed]


def breaker_sequences(
    breakers: Iterable[str],
    pieces: Sequence[bytes],
    encode: Callable[[str], Sequence[int]],
) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences that spell one of `strings`, wherever it begins in a token.

    A token that contains the string is a breaker by itself. A token whose text ends with the
    beginning of the string is one together with the tokens of the rest. pieces: the text of every
    token. encode: turns text into tokens without special tokens. Each string takes a walk over the
    vocabulary, so keep the result.
    """
    found: set[tuple[int, ...]] = set()
    for breaker in breakers:
        text = breaker.encode()
        found.update((token,) for token, piece in enumerate(pieces) if text in piece)
        for cut in range(1, len(text)):
            heads = [t for t, p in enumerate(pieces) if p.endswith(text[:cut]) and text not in p]
            tail = _encode_rest(text[cut:], pieces, encode) if heads else None
            if tail is not None:
                found.update((head, *tail[:MAX_TAIL_TOKENS]) for head in heads)
    return tuple(sorted(found))


def _encode_rest(
    text: bytes, pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]]
) -> list[int] | None:
    """Return the tokens of text that may begin inside a character; None if none can spell it."""
    whole = 0
    while whole < len(text) and text[whole] & 0xC0 == 0x80:
        whole += 1
    loose = [bytes([byte]) for byte in text[:whole]]
    if any(byte not in pieces for byte in loose):
        return None
    rest = text[whole:].decode()
    return [pieces.index(byte) for byte in loose] + (list(encode(rest)) if rest else [])
