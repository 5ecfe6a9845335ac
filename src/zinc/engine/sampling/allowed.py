"""Masks of a constraint, applied to a row of logits.

A mask packs 32 tokens in a word, lowest bit first. Where the form dictates the text (a brace, one
of three names), few words are non-zero, and their tokens are gathered. Inside a string nearly all
tokens are allowed, and the whole row is masked. Neither way expands the mask to booleans, which
would take several times as long as computing the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zinc.core.rounding import ceil_div
from zinc.engine.sampling.candidates import Candidates, Floats, Positions

Words: TypeAlias = NDArray[np.uint32] | NDArray[np.int32]

_WORD_BITS = 32
_FEW = 16  # gather tokens if at most one in this many words is non-zero


class Allowed(Protocol):
    """The tokens that may come next. Asking about one token is cheaper than computing the mask."""

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next because nothing else is allowed; usually none."""
        ...

    def allows(self, token: int) -> bool:
        """Return whether `token` may come next."""
        ...

    def mask(self) -> Words | None:
        """Return uint32 [ceil(n_vocab / 32)], 0 beyond the vocabulary; None allows every token."""
        ...


def limited(logits: Floats, mask: Words) -> Candidates:
    """Return the allowed tokens of a row, float32 [n_vocab], in a new array.

    Other tokens are left out, or set to -inf. Raises ValueError if the mask belongs to another
    vocabulary.
    """
    words = ceil_div(logits.size, _WORD_BITS)
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
    """Return whether `mask` allows each of the tokens `ids`, bool [n]."""
    found: NDArray[np.bool_] = (mask[ids >> 5] >> (ids & 31)) & 1 == 1
    return found


def _limits() -> Floats:
    """Return a table with a row for each byte of a mask, float32 [256, 8].

    An element is +inf where the bit is set and -inf elsewhere, so the minimum with it masks logits.
    """
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits == 1, np.float32(np.inf), np.float32(-np.inf))


_LIMITS = _limits()
