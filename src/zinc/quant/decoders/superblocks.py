"""Decoders of the K and TQ types, with 256 elements per block; scales of K types are quantised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zinc.quant.bits import join, planes, scales_6bit, scales_mins_6bit, split
from zinc.quant.blocks import SUPER
from zinc.quant.decoders.plain import Blocks, Values, column


def _scaled(
    quants: NDArray[np.uint8] | NDArray[np.int8], scales: Values, mins: Values | None = None
) -> Values:
    """Return quants [n, sub-blocks, elements] * scales [n, sub-blocks] - mins, as [n, 256]."""
    values = quants.astype(np.float32)
    values *= scales[:, :, None]
    if mins is not None:
        values -= mins[:, :, None]
    return values.reshape(-1, SUPER)


def q2_k(blocks: Blocks) -> Values:
    quants = planes(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scales, mins = split(blocks["scales"], 4)
    return _scaled(quants, column(blocks["d"]) * scales, column(blocks["dmin"]) * mins)


def q3_k(blocks: Blocks) -> Values:
    low = planes(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, SUPER)
    high = planes(blocks["qh"], 1).reshape(-1, SUPER)
    # Quants are stored plus 4, so a set high bit makes them non-negative.
    quants = join(low, high, 2).view(np.int8) - np.int8(4)
    return _scaled(quants.reshape(-1, 16, 16), column(blocks["d"]) * scales_6bit(blocks["scales"]))


def q4_k(blocks: Blocks) -> Values:
    quants = planes(blocks["qs"].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    scales, mins = scales_mins_6bit(blocks["scales"])
    return _scaled(quants, column(blocks["d"]) * scales, column(blocks["dmin"]) * mins)


def q5_k(blocks: Blocks) -> Values:
    low = planes(blocks["qs"].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    quants = join(low, planes(blocks["qh"], 1), 4)
    scales, mins = scales_mins_6bit(blocks["scales"])
    return _scaled(quants, column(blocks["d"]) * scales, column(blocks["dmin"]) * mins)


def q6_k(blocks: Blocks) -> Values:
    low = planes(blocks["ql"].reshape(-1, 2, 64), 4).reshape(-1, SUPER)
    high = planes(blocks["qh"].reshape(-1, 2, 32), 2).reshape(-1, SUPER)
    quants = join(low, high, 4).view(np.int8) - np.int8(32)
    return _scaled(quants.reshape(-1, 16, 16), column(blocks["d"]) * blocks["scales"])


def tq1_0(blocks: Blocks) -> Values:
    """Decode ternary digits, five a byte as a fixed-point fraction b / 256.

    Digit i = floor(3 * frac(3^i * b / 256)). Bytes 0-31 hold elements 0-159 (digit i of byte j is
    element 32 i + j), bytes 32-47 elements 160-239 with a stride of 16. The four bytes of `qh` hold
    four digits each, with a stride of 4.
    """

    def digits(packed: NDArray[np.uint8], n_digits: int) -> NDArray[np.uint8]:
        powers = np.array([1, 3, 9, 27, 81], np.uint8)[:n_digits, None]
        fractions = packed[:, None, :] * powers  # wraps at 256: keeps the fraction
        return fractions.reshape(len(packed), -1)

    qs = blocks["qs"]
    fractions = np.concatenate(
        [digits(qs[:, :32], 5), digits(qs[:, 32:], 5), digits(blocks["qh"], 4)], axis=1
    )
    quants = (fractions.astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
    return quants.astype(np.float32) * column(blocks["d"])


def tq2_0(blocks: Blocks) -> Values:
    quants = planes(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, SUPER).view(np.int8)
    return (quants - np.int8(1)).astype(np.float32) * column(blocks["d"])
