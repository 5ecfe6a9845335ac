"""Streams of the IQ formats that have codebooks (see packing.py).

A codebook lists points: groups of four or eight elements. Stream `q` has the low eight bits of
point numbers, `h` one byte of signs for each eight elements, and `s` the codebook, then for each
block the other bits of the point numbers, the scales of its units, and d. Bit fields of the file
become whole bytes, so formats below 2.6 bits a weight grow by up to a quarter, and one decoder
reads all formats with the same number of bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.gpu.memory import Bytes
from zinc.quant.bits import interleaved
from zinc.quant.blocks import GGMLType
from zinc.quant.codebooks import digits

Blocks = npt.NDArray[np.void]
Streams = tuple[Bytes, ...]

_SIGNS = np.arange(0, 28, 7, dtype=np.uint32)


def codebook(type: GGMLType) -> Bytes:
    """Return the points of a format as bytes of 16-bit words.

    A word holds the ranks of a point's elements among the values that the format can have: eight
    ranks of 2 bits, or four of 3 bits.
    """
    points = digits(type).astype(np.uint16)
    width = 16 // points.shape[1] if points.shape[1] == 8 else 3
    at = np.arange(points.shape[1], dtype=np.uint16) * np.uint16(width)
    words: npt.NDArray[np.uint16] = np.bitwise_or.reduce(points << at, axis=1)
    return words.view(np.uint8)


def _full_signs(seven: npt.NDArray[Any]) -> Bytes:
    """Return bytes of eight signs. The eighth makes the number of negative ones even."""
    signs = seven.astype(np.uint8) & np.uint8(0x7F)
    parity = np.bitwise_xor.reduce(np.unpackbits(signs[..., None], axis=-1), axis=-1)
    full: Bytes = signs | parity << np.uint8(7)
    return full


def _units(high: Bytes, scales: Bytes, d: npt.NDArray[Any]) -> Bytes:
    """Return for each block [high bits, scales] of its eight units, then d."""
    both = np.stack([high, scales], axis=2).reshape(len(d), 16)
    return np.concatenate([both, _d(d)], axis=1)


def _d(d: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(d).view(np.uint8).reshape(-1, 2)


def _twice(scales: npt.NDArray[Any]) -> Bytes:
    """Return a byte with the 4-bit scale in both nibbles, one for each half of a unit."""
    return scales.astype(np.uint8) * np.uint8(0x11)


def _meta(words: npt.NDArray[np.uint32]) -> tuple[Bytes, Bytes]:
    """Return signs [n, 32] and scales [n, 8] from words of four times seven signs and a scale."""
    signs = _full_signs(words[:, :, None] >> _SIGNS)
    return signs.reshape(len(words), 32), _twice(words >> np.uint32(28))


def iq2_xxs(b: Blocks) -> Streams:
    words = b["qs"].reshape(-1, 8, 2)
    index = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    signs, scales = _meta(words[:, :, 1])
    return index, signs, _units(np.zeros_like(scales), scales, b["d"])


def iq2_xs(b: Blocks) -> Streams:
    words = b["qs"]
    high = (words >> np.uint16(8) & np.uint16(1)).astype(np.uint8).reshape(-1, 8, 4)
    packed = np.bitwise_or.reduce(high << np.arange(0, 8, 2, dtype=np.uint8), axis=2)
    index = words.astype(np.uint8)
    return index, _full_signs(words >> np.uint16(9)), _units(packed, b["scales"], b["d"])


def iq2_s(b: Blocks) -> Streams:
    return b["qs"], b["signs"], _units(b["qh"], b["scales"], b["d"])


def iq3_xxs(b: Blocks) -> Streams:
    signs, scales = _meta(b["scales"])
    return b["qs"], signs, _units(np.zeros_like(scales), scales, b["d"])


def iq3_s(b: Blocks) -> Streams:
    return b["qs"], b["signs"], _units(b["qh"], _twice(interleaved(b["scales"], 4)), b["d"])


def iq1_s(b: Blocks) -> Streams:
    """Return the streams of IQ1_S.

    Its scales are four nibbles for each unit, with the high bits of a point number and the sign of
    its shift, then eight bytes of scales, then d.
    """
    qh = b["qh"]
    high = qh[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)
    nibbles = high | (qh >> np.uint16(15))[:, :, None] << np.uint16(3)
    at = np.arange(0, 16, 4, dtype=np.uint16)
    words: npt.NDArray[np.uint16] = np.bitwise_or.reduce(nibbles << at, axis=2)
    scales = _twice(qh >> np.uint16(12) & np.uint16(7))
    return b["qs"], np.concatenate([words.view(np.uint8), scales, _d(b["d"])], axis=1)


def iq1_m(b: Blocks) -> Streams:
    words = b["scales"]
    nibbles = words >> np.uint16(12) << np.arange(0, 16, 4, dtype=np.uint16)
    d: npt.NDArray[np.uint16] = np.bitwise_or.reduce(nibbles, axis=1)
    each = words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)
    scales = each.astype(np.uint8).reshape(len(b), 8, 2)
    packed = scales[:, :, 0] | scales[:, :, 1] << np.uint8(4)
    return b["qs"], np.concatenate([b["qh"], packed, _d(d)], axis=1)
