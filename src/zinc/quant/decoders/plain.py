"""Decoders of plain numbers and of types with one scale, and maybe a minimum, a block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zinc.quant.bits import interleaved, join, planes
from zinc.quant.codebooks import E2M1_DOUBLED, e8m0_halved, ue4m3_halved

Blocks = NDArray[np.void]
Values = NDArray[np.float32]


def column(scales: NDArray[Any]) -> Values:
    """Return the scales of n blocks as float32 [n, 1], to broadcast."""
    return scales.astype(np.float32)[:, None]


def number(blocks: Blocks) -> Values:
    """Decode F32, F16, F64 and the integer types."""
    values: NDArray[Any] = blocks["value"]
    return values.astype(np.float32)[:, None]


f32 = f16 = f64 = i8 = i16 = i32 = i64 = number


def bf16(blocks: Blocks) -> Values:
    return (blocks["value"].astype(np.uint32) << 16).view(np.float32)[:, None]


def q1_0(blocks: Blocks) -> Values:
    d = column(blocks["d"])
    return np.where(interleaved(blocks["qs"], 1) != 0, d, -d)


def q2_0(blocks: Blocks) -> Values:
    quants = interleaved(blocks["qs"], 2).view(np.int8) - np.int8(1)
    return quants.astype(np.float32) * column(blocks["d"])


def q4_0(blocks: Blocks) -> Values:
    quants = planes(blocks["qs"], 4).reshape(-1, 32).view(np.int8) - np.int8(8)
    return quants.astype(np.float32) * column(blocks["d"])


def q4_1(blocks: Blocks) -> Values:
    quants = planes(blocks["qs"], 4).reshape(-1, 32)
    return quants.astype(np.float32) * column(blocks["d"]) + column(blocks["m"])


def _five_bits(blocks: Blocks) -> NDArray[np.uint8]:
    low = planes(blocks["qs"], 4).reshape(-1, 32)
    return join(low, interleaved(blocks["qh"], 1), 4)


def q5_0(blocks: Blocks) -> Values:
    quants = _five_bits(blocks).view(np.int8) - np.int8(16)
    return quants.astype(np.float32) * column(blocks["d"])


def q5_1(blocks: Blocks) -> Values:
    return _five_bits(blocks).astype(np.float32) * column(blocks["d"]) + column(blocks["m"])


def q8(blocks: Blocks) -> Values:
    """Decode Q8_0, Q8_1 and Q8_K; the stored sums of the last two are not needed."""
    quants: NDArray[np.int8] = blocks["qs"]
    return quants.astype(np.float32) * column(blocks["d"])


q8_0 = q8_1 = q8_k = q8


def mxfp4(blocks: Blocks) -> Values:
    values = E2M1_DOUBLED.astype(np.float32).take(planes(blocks["qs"], 4).reshape(-1, 32))
    return values * e8m0_halved().take(blocks["e"])[:, None]


def nvfp4(blocks: Blocks) -> Values:
    codes = planes(blocks["qs"].reshape(-1, 4, 8), 4).reshape(-1, 4, 16)
    values = E2M1_DOUBLED.astype(np.float32).take(codes)
    return (values * ue4m3_halved().take(blocks["d"])[:, :, None]).reshape(-1, 64)
