"""Packing and unpacking of small integers in bytes, as pairs of inverse functions.

Most block formats store elements in planes: the low halves of 16 bytes are elements 0 to 15, the
high halves elements 16 to 31. Scales and high bits may also be interleaved, in the order of the
elements, or have a layout of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]


def planes(packed: U8, width: int) -> U8:
    """Split bytes into planes of `width` bits, low bits first: [..., b] to [..., 8 // width, b]."""
    n_planes = 8 // width
    out = np.empty((*packed.shape[:-1], n_planes, packed.shape[-1]), np.uint8)
    mask = np.uint8((1 << width) - 1)
    for i in range(n_planes):
        plane = out[..., i, :]
        np.right_shift(packed, np.uint8(width * i), out=plane)
        plane &= mask
    return out


def pack_planes(values: U8, width: int) -> U8:
    """Pack planes into bytes, the inverse of `planes`: [..., 8 // width, b] to [..., b].

    Values must fit in `width` bits.
    """
    packed = values[..., 0, :].copy()
    for i in range(1, 8 // width):
        packed |= values[..., i, :] << np.uint8(width * i)
    return packed


def interleaved(packed: U8, width: int) -> U8:
    """Split bytes into consecutive values, low bits first: [..., b] to [..., b * 8 // width]."""
    return planes(packed, width).swapaxes(-1, -2).reshape(*packed.shape[:-1], -1)


def pack_interleaved(values: U8, width: int) -> U8:
    """Pack consecutive values into bytes, the inverse of `interleaved`."""
    grouped = values.reshape(*values.shape[:-1], -1, 8 // width)
    return pack_planes(grouped.swapaxes(-1, -2), width)


def split(values: U8, width: int) -> tuple[U8, U8]:
    """Return the low `width` bits of each value, and the bits above."""
    return values & np.uint8((1 << width) - 1), values >> np.uint8(width)


def join(low: U8, high: U8, width: int) -> U8:
    """Join low and high bits, the inverse of `split`."""
    return low | high << np.uint8(width)


def scales_mins_6bit(packed: U8) -> tuple[U8, U8]:
    """Unpack the eight 6-bit scales and minimums of Q4_K and Q5_K: [n, 12] to two [n, 8].

    bytes 0-3   low 6 bits: scales 0-3     top 2 bits: bits 4-5 of scales 4-7
    bytes 4-7   low 6 bits: minimums 0-3   top 2 bits: bits 4-5 of minimums 4-7
    bytes 8-11  low 4 bits of scales 4-7 | low 4 bits of minimums 4-7
    """
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 0x3F, (c & 0xF) | (a >> 6 << 4)], axis=1)
    mins = np.concatenate([b & 0x3F, (c >> 4) | (b >> 6 << 4)], axis=1)
    return scales, mins


def pack_scales_mins_6bit(scales: U8, mins: U8) -> U8:
    """Pack scales and minimums, the inverse of `scales_mins_6bit`."""
    a = scales[:, :4] | scales[:, 4:] >> 4 << 6
    b = mins[:, :4] | mins[:, 4:] >> 4 << 6
    c = (scales[:, 4:] & 0xF) | mins[:, 4:] << 4
    return np.concatenate([a, b, c], axis=1)


def scales_6bit(packed: U8) -> NDArray[np.int8]:
    """Unpack the sixteen signed 6-bit scales of Q3_K, stored plus 32: [n, 12] to [n, 16].

    bytes 0-7   low 4 bits of scales 0-7 | low 4 bits of scales 8-15
    bytes 8-11  bits 4-5 of scales i, i+4, i+8, i+12 from the low end up
    """
    low = planes(packed[:, :8], 4).reshape(-1, 16)
    high = planes(packed[:, 8:], 2).reshape(-1, 16)
    return join(low, high, 4).view(np.int8) - np.int8(32)


def pack_scales_6bit(scales: NDArray[np.int8]) -> U8:
    """Pack scales, the inverse of `scales_6bit`."""
    low, high = split((scales + np.int8(32)).view(np.uint8), 4)
    return np.concatenate(
        [pack_planes(low.reshape(-1, 2, 8), 4), pack_planes(high.reshape(-1, 4, 4), 2)], axis=1
    )
