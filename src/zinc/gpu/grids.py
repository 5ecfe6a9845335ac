"""Streams of the IQ formats whose groups of elements are points of a codebook (see packing.py).

What their blocks pack by the bit is set apart: `q` has the low eight bits of the points' numbers,
`h` a byte of signs for eight elements, `s` the codebook, then for each block what is left of the
numbers and the scales of its units, and d. So files below 2.6 bits a weight grow by up to a quarter
in device memory, and one decoder reads all formats of a width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.quant.bits import interleaved
from zinc.quant.blocks import GGMLType
from zinc.quant.codebooks import digits

Bytes = npt.NDArray[np.uint8]
Blocks = npt.NDArray[np.void]
Streams = tuple[Bytes, ...]

_SIGNS = np.arange(0, 28, 7, dtype=np.uint32)


def codebook(type: GGMLType) -> Bytes:
    """The points as 16-bit words of ranks of their values: eight of 2 bits, or four of 3."""
    points = digits(type).astype(np.uint16)
    width = 16 // points.shape[1] if points.shape[1] == 8 else 3
    at = np.arange(points.shape[1], dtype=np.uint16) * np.uint16(width)
    words: npt.NDArray[np.uint16] = np.bitwise_or.reduce(points << at, axis=1)
    return words.view(np.uint8)


def _full_signs(seven: npt.NDArray[Any]) -> Bytes:
    """Seven signs of which an even number is minus, to eight."""
    signs = seven.astype(np.uint8) & np.uint8(0x7F)
    parity = np.bitwise_xor.reduce(np.unpackbits(signs[..., None], axis=-1), axis=-1)
    full: Bytes = signs | parity << np.uint8(7)
    return full


def _units(high: Bytes, scales: Bytes, d: npt.NDArray[Any]) -> Bytes:
    """[high bits, scales] of each unit, then d of the block."""
    both = np.stack([high, scales], axis=2).reshape(len(d), 16)
    return np.concatenate([both, _d(d)], axis=1)


def _d(d: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(d).view(np.uint8).reshape(-1, 2)


def _twice(scales: npt.NDArray[Any]) -> Bytes:
    """One scale of four bits for both halves of a unit."""
    return scales.astype(np.uint8) * np.uint8(0x11)


def _meta(words: npt.NDArray[np.uint32]) -> tuple[Bytes, Bytes]:
    """Words of four times seven signs and a scale: signs [n, 32], scales [n, 8]."""
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
    """Scales: four nibbles a unit, high bits of a number and the sign of its shift; eight bytes of
    scales; d."""
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
