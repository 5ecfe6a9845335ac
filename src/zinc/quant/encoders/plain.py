"""Encoders of plain floats and of the 32-element types, equal to ggml's reference bit for bit.

The scale follows from the largest element of the block, without a search. As in the reference,
quants are rounded with the exact float32 scale, and only then is the scale rounded to float16.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zinc.core.errors import ModelError
from zinc.quant.bits import pack_interleaved, pack_planes, split
from zinc.quant.blocks import BLOCKS, GGMLType

Blocks = NDArray[np.void]
Values = NDArray[np.float32]


def half(values: Values) -> NDArray[np.float16]:
    """Round to float16. Raises ModelError for finite values out of its range."""
    rounded = values.astype(np.float16)
    overflow = np.isinf(rounded) & np.isfinite(values)
    if overflow.any():
        raise ModelError(
            f"{values[overflow][0]:g} cannot be stored",
            "it is out of the range of float16",
            "use BF16 or F32 for this tensor",
        )
    return rounded


def reciprocal(scales: Values) -> Values:
    """Return 1 / scale, or 0 if the scale is 0 or so small that the inverse overflows."""
    inverse = np.float32(1) / scales
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def f32(values: Values) -> Blocks:
    return values.astype("<f4").view(BLOCKS[GGMLType.F32].dtype)


def f16(values: Values) -> Blocks:
    return half(values).astype("<f2").view(BLOCKS[GGMLType.F16].dtype)


def bf16(values: Values) -> Blocks:
    """Encode bfloat16: round to nearest even; a NaN becomes a quiet NaN."""
    bits = values.view(np.uint32)
    rounded = bits + (0x7FFF + (bits >> 16 & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    stored = np.where(is_nan, bits >> 16 | 0x40, rounded)
    return stored.astype("<u2").view(BLOCKS[GGMLType.BF16].dtype)


def _signed_peak(values: Values) -> Values:
    """Return the element of largest magnitude of each block, with its sign: [n, 1]."""
    index = np.abs(values).argmax(axis=1, keepdims=True)
    return np.take_along_axis(values, index, axis=1)


def _round_half_up(scaled: Values, highest: int) -> NDArray[np.uint8]:
    return (scaled + np.float32(0.5)).astype(np.uint8).clip(0, highest)


def _set_five_bits(out: Blocks, quants: NDArray[np.uint8]) -> None:
    low, high = split(quants, 4)
    out["qs"] = pack_planes(low.reshape(-1, 2, 16), 4)
    out["qh"] = pack_interleaved(high, 1)


def _symmetric(values: Values, n_levels: int) -> tuple[Values, NDArray[np.uint8]]:
    """Return scales [n] and quants [n, elements], offset by n_levels / 2.

    The element of largest magnitude becomes quant 0.
    """
    scale = _signed_peak(values) / np.float32(-(n_levels // 2))
    shifted = values * reciprocal(scale) + np.float32(n_levels // 2 + 0.5)
    return scale[:, 0], shifted.astype(np.uint8).clip(0, n_levels - 1)


def _affine(values: Values, n_levels: int) -> tuple[Values, Values, NDArray[np.uint8]]:
    """Return scales [n], minimums [n] and quants [n, elements]."""
    low = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - low) / np.float32(n_levels - 1)
    quants = _round_half_up((values - low) * reciprocal(scale), n_levels - 1)
    return scale[:, 0], low[:, 0], quants


def q4_0(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q4_0].dtype)
    scale, quants = _symmetric(values, 16)
    out["d"] = half(scale)
    out["qs"] = pack_planes(quants.reshape(-1, 2, 16), 4)
    return out


def q4_1(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q4_1].dtype)
    scale, low, quants = _affine(values, 16)
    out["d"], out["m"] = half(scale), half(low)
    out["qs"] = pack_planes(quants.reshape(-1, 2, 16), 4)
    return out


def q5_0(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q5_0].dtype)
    scale, quants = _symmetric(values, 32)
    out["d"] = half(scale)
    _set_five_bits(out, quants)
    return out


def q5_1(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q5_1].dtype)
    scale, low, quants = _affine(values, 32)
    out["d"], out["m"] = half(scale), half(low)
    _set_five_bits(out, quants)
    return out


def q8_0(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q8_0].dtype)
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * reciprocal(scale)
    # Round halves away from zero, like roundf of C.
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    whole += magnitude - whole >= np.float32(0.5)
    out["d"] = half(scale[:, 0])
    out["qs"] = np.copysign(whole, scaled).astype(np.int8)
    return out


# Midpoints between the magnitudes of E2M1, all doubled.
_E2M1_MIDPOINTS = np.array([0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0], np.float32)


def mxfp4(values: Values) -> Blocks:
    """Encode MXFP4 (OCP Microscaling Formats 1.0).

    The scale is the power of two that brings the peak between 4 and 8 (the largest E2M1 value is
    6). Values are rounded to the nearest; a tie goes to the smaller magnitude.
    """
    out = np.empty(len(values), BLOCKS[GGMLType.MXFP4].dtype)
    peak = np.abs(values).max(axis=1)
    exponent = np.floor(np.log2(np.maximum(peak, np.float32(1e-45)))) - 2
    biased = np.where(peak > 0, np.clip(exponent + 127, 0, 254), 0).astype(np.uint8)
    doubled = np.ldexp(values, 128 - biased.astype(np.int32)[:, None])
    quants = np.searchsorted(_E2M1_MIDPOINTS, np.abs(doubled)).astype(np.uint8)
    quants |= ((quants > 0) & (values < 0)).astype(np.uint8) << 3
    out["e"] = biased
    out["qs"] = pack_planes(quants.reshape(-1, 2, 16), 4)
    return out
