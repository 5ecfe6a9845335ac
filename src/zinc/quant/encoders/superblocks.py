"""Encoders of the K types: a least-squares fit for each sub-block, then quantised scales.

For each sub-block several roundings of the elements are tried. For fixed quants the best scale (and
minimum) has a closed form; the rounding with the smallest squared error wins. Then the scales of
the super-block are quantised, and the quants are rounded again for the quantised scales. Errors are
not weighted, so there is no importance matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zinc.quant.bits import join, pack_planes, pack_scales_6bit, pack_scales_mins_6bit, split
from zinc.quant.blocks import BLOCKS, SUPER, GGMLType
from zinc.quant.encoders.plain import Blocks, Values, half, reciprocal

_AFFINE_STRETCH = np.linspace(-1, 1, 15, dtype=np.float32)
_SYMMETRIC_STRETCH = np.linspace(-0.9, 0.9, 13, dtype=np.float32)


def _fit_affine(values: Values, highest: int) -> tuple[Values, Values]:
    """Fit x ~ s * q - m with s, m >= 0 and q in 0..highest: [..., n] to s and m [...].

    For fixed q: s = (n*Sxq - Sx*Sq) / (n*Sqq - Sq^2), m = (s*Sq - Sx) / n (linear regression),
    and s = Sxq / Sqq if that m is negative, which the format cannot store.
    """
    n = np.float32(values.shape[-1])
    low = np.minimum(values.min(axis=-1), 0)
    span = values.max(axis=-1) - low
    sum_x = values.sum(axis=-1)
    best_scale, best_min = span / np.float32(highest), -low
    best_error = np.full_like(span, np.inf)
    shifted = values - low[..., None]
    for stretch in _AFFINE_STRETCH:
        quants = np.rint(shifted * (reciprocal(span) * (highest + stretch))[..., None])
        np.minimum(quants, highest, out=quants)
        sum_q = quants.sum(axis=-1)
        sum_qq = np.einsum("...i,...i->...", quants, quants)
        sum_xq = np.einsum("...i,...i->...", values, quants)
        scale = (n * sum_xq - sum_x * sum_q) * reciprocal(n * sum_qq - sum_q * sum_q)
        minimum = (scale * sum_q - sum_x) / n
        through_zero = minimum < 0
        scale = np.where(through_zero, sum_xq * reciprocal(sum_qq), scale)
        minimum = np.where(through_zero, np.float32(0), minimum)
        residual = quants
        residual *= scale[..., None]
        residual -= minimum[..., None]
        residual -= values
        error = np.einsum("...i,...i->...", residual, residual)
        better = (error < best_error) & (scale > 0)
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
        best_min = np.where(better, minimum, best_min)
    return best_scale, best_min


def _fit_symmetric(values: Values, n_half: int) -> Values:
    """Fit x ~ s * q with s of either sign and q in -n_half..n_half - 1: [..., n] to s [...].

    For fixed q the best s is Sxq / Sqq and lowers the squared error by Sxq^2 / Sqq. The range has
    one level more below zero, so both signs of the scale are tried.
    """
    peak: Values = np.abs(values).max(axis=-1)
    inverse = reciprocal(peak)
    best_scale = np.zeros_like(peak)
    best_gain = np.zeros_like(peak)
    for stretch in _SYMMETRIC_STRETCH:
        for sign in (-1, 1):
            quants = np.rint(values * (inverse * (sign * (n_half + stretch)))[..., None])
            np.clip(quants, -n_half, n_half - 1, out=quants)
            sum_xq = np.einsum("...i,...i->...", values, quants)
            scale = sum_xq * reciprocal(np.einsum("...i,...i->...", quants, quants))
            gain = scale * sum_xq
            better = gain > best_gain
            best_gain = np.where(better, gain, best_gain)
            best_scale = np.where(better, scale, best_scale)
    return best_scale


def _quantise_scales(scales: Values, highest: int) -> tuple[NDArray[np.float16], Values]:
    """Quantise scales [n, sub-blocks] >= 0 to d [n] (float16) times integers 0..highest."""
    d = half(scales.max(axis=1) / np.float32(highest))
    steps = np.rint(scales * reciprocal(d.astype(np.float32))[:, None])
    return d, np.minimum(steps, highest)


def _affine_blocks(
    values: Values, n_sub_blocks: int, highest: int, highest_scale: int
) -> tuple[NDArray[np.float16], NDArray[np.float16], Values, Values, NDArray[np.uint8]]:
    """Return d, dmin [n], integer scales and minimums [n, sub-blocks] and quants [n, 256]."""
    parts = values.reshape(-1, n_sub_blocks, SUPER // n_sub_blocks)
    scales, mins = _fit_affine(parts, highest)
    d, int_scales = _quantise_scales(scales, highest_scale)
    dmin, int_mins = _quantise_scales(mins, highest_scale)
    scale = d.astype(np.float32)[:, None] * int_scales
    minimum = dmin.astype(np.float32)[:, None] * int_mins
    quants = np.rint((parts + minimum[:, :, None]) * reciprocal(scale)[:, :, None])
    quants = quants.clip(0, highest).astype(np.uint8)
    return d, dmin, int_scales, int_mins, quants.reshape(-1, SUPER)


def _symmetric_blocks(
    values: Values, n_half: int, n_half_scale: int
) -> tuple[NDArray[np.float16], NDArray[np.int8], NDArray[np.uint8]]:
    """Return d [n], integer scales [n, 16] and quants + n_half [n, 256]."""
    parts = values.reshape(-1, 16, 16)
    scales = _fit_symmetric(parts, n_half)
    index = np.abs(scales).argmax(axis=1, keepdims=True)
    d = half(np.take_along_axis(scales, index, axis=1)[:, 0] / np.float32(-n_half_scale))
    step = d.astype(np.float32)[:, None]
    int_scales = np.rint(scales * reciprocal(step)).clip(-n_half_scale, n_half_scale - 1)
    quants = np.rint(parts * reciprocal(step * int_scales)[:, :, None])
    quants = quants.clip(-n_half, n_half - 1) + np.float32(n_half)
    return d, int_scales.astype(np.int8), quants.astype(np.uint8).reshape(-1, SUPER)


def q2_k(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q2_K].dtype)
    out["d"], out["dmin"], scales, mins, quants = _affine_blocks(values, 16, 3, 15)
    out["scales"] = join(scales.astype(np.uint8), mins.astype(np.uint8), 4)
    out["qs"] = pack_planes(quants.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)
    return out


def q3_k(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q3_K].dtype)
    out["d"], scales, quants = _symmetric_blocks(values, 4, 32)
    out["scales"] = pack_scales_6bit(scales)
    low, high = split(quants, 2)
    out["qs"] = pack_planes(low.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)
    out["qh"] = pack_planes(high.reshape(-1, 8, 32), 1)
    return out


def q4_k(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q4_K].dtype)
    out["d"], out["dmin"], scales, mins, quants = _affine_blocks(values, 8, 15, 63)
    out["scales"] = pack_scales_mins_6bit(scales.astype(np.uint8), mins.astype(np.uint8))
    out["qs"] = pack_planes(quants.reshape(-1, 4, 2, 32), 4).reshape(-1, 128)
    return out


def q5_k(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q5_K].dtype)
    out["d"], out["dmin"], scales, mins, quants = _affine_blocks(values, 8, 31, 63)
    out["scales"] = pack_scales_mins_6bit(scales.astype(np.uint8), mins.astype(np.uint8))
    low, high = split(quants, 4)
    out["qs"] = pack_planes(low.reshape(-1, 4, 2, 32), 4).reshape(-1, 128)
    out["qh"] = pack_planes(high.reshape(-1, 8, 32), 1)
    return out


def q6_k(values: Values) -> Blocks:
    out = np.empty(len(values), BLOCKS[GGMLType.Q6_K].dtype)
    out["d"], out["scales"], quants = _symmetric_blocks(values, 32, 128)
    low, high = split(quants, 4)
    out["ql"] = pack_planes(low.reshape(-1, 2, 2, 64), 4).reshape(-1, 128)
    out["qh"] = pack_planes(high.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)
    return out
