"""What a constraint leaves of a row of logits.

A mask is tokens packed 32 a word, lowest bit first. Where a form dictates what comes (a brace, one
of three names) it has few words that are not zero, and the tokens in them are gathered; inside a
string nearly all are allowed, and the row is limited as a whole. Neither ever walks over the
vocabulary as booleans, which would cost several times as much as to make the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zinc.engine.sampling.candidates import Candidates, Floats, Positions

Words: TypeAlias = NDArray[np.uint32] | NDArray[np.int32]

_WORD_BITS = 32
_FEW = 16  # of so many words, one at most may be in use for its tokens to be gathered


class Allowed(Protocol):
    """The tokens that may come next. To ask for one is cheaper than for all."""

    def forced(self) -> Sequence[int]:
        """What has to come next, token by token, since nothing else is allowed: mostly nothing."""
        ...

    def allows(self, token: int) -> bool: ...

    def mask(self) -> Words | None:
        """[ceil(n_vocab / 32)] words, 0 beyond the vocabulary; None allows every token."""
        ...


class Mask:
    """A mask that is there already, from [n_vocab] bool."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        self._allowed = allowed
        packed = np.packbits(allowed, bitorder="little")
        n_words = -(-allowed.size // _WORD_BITS)
        self._words = np.pad(packed, (0, 4 * n_words - packed.size)).view(np.uint32)

    def forced(self) -> Sequence[int]:
        return ()

    def allows(self, token: int) -> bool:
        return bool(self._allowed[token])

    def mask(self) -> Words:
        return self._words


def limited(logits: Floats, mask: Words) -> Candidates:
    """The allowed tokens of a row, [n_vocab] float32, in an array of their own.

    Others are left out, or are at -inf. Raises ValueError for a mask of another vocabulary.
    """
    words = -(-logits.size // _WORD_BITS)
    if mask.shape != (words,) or mask.dtype.kind not in "iu" or mask.itemsize != 4:
        raise ValueError(f"a mask of {mask.dtype} {mask.shape} does not fit {logits.size} tokens")
    used = np.flatnonzero(mask)
    if used.size * _FEW <= words:
        places = np.flatnonzero(np.unpackbits(mask[used].view(np.uint8), bitorder="little"))
        ids = (used[places >> 5] << 5) | (places & 31)
        return Candidates(logits[ids], ids)
    limits = np.empty((4 * words, 8), np.float32)
    np.take(_LIMITS, mask.view(np.uint8), axis=0, out=limits, mode="clip")
    row = limits.reshape(-1)[: logits.size]
    return Candidates(np.minimum(logits, row, out=row))


def is_allowed(mask: Words, ids: Positions) -> NDArray[np.bool_]:
    """Whether a mask has each of some tokens, [n]."""
    found: NDArray[np.bool_] = (mask[ids >> 5] >> (ids & 31)) & 1 == 1
    return found


def _limits() -> Floats:
    """For each byte of a mask +inf where a bit is set and -inf elsewhere, [256, 8]: a minimum with
    it masks."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits == 1, np.float32(np.inf), np.float32(-np.inf))


_LIMITS = _limits()
