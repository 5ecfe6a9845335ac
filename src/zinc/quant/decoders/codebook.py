"""Decoders of the IQ types, whose groups of 8 or 4 elements are points of a codebook with signs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zinc.quant.bits import interleaved, planes
from zinc.quant.blocks import SUPER, GGMLType
from zinc.quant.codebooks import IQ1_DELTA, IQ4_VALUES, byte_signs, grid, parity_signs
from zinc.quant.decoders.plain import Blocks, Values, column

_HALF = np.float32(0.5)
_QUARTER = np.float32(0.25)


def _signed(type: GGMLType, index: NDArray[Any], scales: Values, signs: Values) -> Values:
    """Return grid points `index` [n, groups] * scales [n, s] * signs [n, 32, 8], as [n, 256]."""
    n_blocks, n_scales = scales.shape
    points = grid(type).take(index, axis=0).reshape(n_blocks, n_scales, -1)
    points *= scales[:, :, None]
    return points.reshape(n_blocks, SUPER) * signs.reshape(n_blocks, SUPER)


def _seven_bit_signs(words: NDArray[np.uint32]) -> Values:
    """Unpack four 7-bit sign patterns per word, low bits first: [n, 8] to float32 [n, 32, 8]."""
    index = words[:, :, None] >> np.arange(0, 28, 7, dtype=np.uint32) & 0x7F
    return parity_signs().take(index.reshape(len(words), 32), axis=0)


def iq2_xxs(blocks: Blocks) -> Values:
    words = blocks["qs"].reshape(-1, 8, 2)  # four grid indices, then signs and a 4-bit scale
    index = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    meta = words[:, :, 1]
    scales = column(blocks["d"]) * (_HALF + (meta >> 28).astype(np.float32)) * _QUARTER
    return _signed(GGMLType.IQ2_XXS, index, scales, _seven_bit_signs(meta))


def iq2_xs(blocks: Blocks) -> Values:
    words = blocks["qs"]  # 9 bits of grid index, 7 of signs
    scales = column(blocks["d"]) * (_HALF + interleaved(blocks["scales"], 4)) * _QUARTER
    return _signed(GGMLType.IQ2_XS, words & 0x1FF, scales, parity_signs()[words >> 9])


def iq2_s(blocks: Blocks) -> Values:
    index = blocks["qs"] | interleaved(blocks["qh"], 2).astype(np.uint16) << 8
    scales = column(blocks["d"]) * (_HALF + interleaved(blocks["scales"], 4)) * _QUARTER
    return _signed(GGMLType.IQ2_S, index, scales, byte_signs()[blocks["signs"]])


def iq3_xxs(blocks: Blocks) -> Values:
    meta = blocks["scales"]  # 28 bits of signs and a 4-bit scale
    scales = column(blocks["d"]) * (_HALF + (meta >> 28).astype(np.float32)) * _HALF
    return _signed(GGMLType.IQ3_XXS, blocks["qs"], scales, _seven_bit_signs(meta))


def iq3_s(blocks: Blocks) -> Values:
    index = blocks["qs"] | interleaved(blocks["qh"], 1).astype(np.uint16) << 8
    scales = column(blocks["d"]) * (1 + 2 * interleaved(blocks["scales"], 4))
    return _signed(GGMLType.IQ3_S, index, scales, byte_signs()[blocks["signs"]])


def iq1_s(blocks: Blocks) -> Values:
    # 0-11: the high 3 bits of four grid indices; 12-14: scale; 15: sign of the shift.
    qh: NDArray[np.uint16] = blocks["qh"]
    high = qh[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    index = blocks["qs"] | high.reshape(-1, 32) << 8
    scales = column(blocks["d"]) * (2 * (qh >> 12 & 7) + 1)
    shift = np.where(qh & 0x8000, np.float32(-IQ1_DELTA), np.float32(IQ1_DELTA))
    points: Values = grid(GGMLType.IQ1_S).take(index, axis=0).reshape(-1, 8, 32)
    points += shift[:, :, None]
    points *= scales[:, :, None]
    return points.reshape(-1, SUPER)


def iq1_m(blocks: Blocks) -> Values:
    # The float16 block scale is spread over the top nibbles of the four words of scales.
    words = blocks["scales"]
    nibbles = words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(nibbles, axis=1).view(np.float16)
    scales = words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    factors = column(d) * (2 * scales.reshape(-1, 16) + 1)
    qh = interleaved(blocks["qh"], 4)  # a group's high 3 index bits, then the sign of its shift
    index = blocks["qs"] | (qh & 7).astype(np.uint16) << 8
    shift = np.where(qh & 8, np.float32(-IQ1_DELTA), np.float32(IQ1_DELTA))
    points: Values = grid(GGMLType.IQ1_M).take(index, axis=0)
    points += shift[:, :, None]
    return (points.reshape(-1, 16, 16) * factors[:, :, None]).reshape(-1, SUPER)


def iq4_nl(blocks: Blocks) -> Values:
    levels = IQ4_VALUES.astype(np.float32).take(planes(blocks["qs"], 4).reshape(-1, 32))
    return levels * column(blocks["d"])


def iq4_xs(blocks: Blocks) -> Values:
    low = interleaved(blocks["scales_l"], 4)
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3) << 4
    scales = (low | high).astype(np.int8) - np.int8(32)
    factors = column(blocks["d"]) * scales
    codes = planes(blocks["qs"].reshape(-1, 8, 16), 4).reshape(-1, 8, 32)
    levels = IQ4_VALUES.astype(np.float32).take(codes)
    return (levels * factors[:, :, None]).reshape(-1, SUPER)
