"""Encoding of float32 arrays to tensor data, a few thousand blocks at a time.

The 32-element types equal ggml's reference bit for bit. The K types search for better scales; their
error is at most ggml's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zinc.core.errors import ModelError, UnsupportedError
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes
from zinc.quant.encoders import plain, superblocks

_CHUNK_ELEMENTS = 1 << 16

Encoder = Callable[[NDArray[np.float32]], NDArray[np.void]]

ENCODERS: dict[GGMLType, Encoder] = {
    GGMLType.F32: plain.f32,
    GGMLType.F16: plain.f16,
    GGMLType.BF16: plain.bf16,
    GGMLType.Q4_0: plain.q4_0,
    GGMLType.Q4_1: plain.q4_1,
    GGMLType.Q5_0: plain.q5_0,
    GGMLType.Q5_1: plain.q5_1,
    GGMLType.Q8_0: plain.q8_0,
    GGMLType.MXFP4: plain.mxfp4,
    GGMLType.Q2_K: superblocks.q2_k,
    GGMLType.Q3_K: superblocks.q3_k,
    GGMLType.Q4_K: superblocks.q4_k,
    GGMLType.Q5_K: superblocks.q5_k,
    GGMLType.Q6_K: superblocks.q6_k,
}


def encode(array: NDArray[np.floating[Any]], type: GGMLType) -> NDArray[np.uint8]:
    """Encode floats [..., columns] as `type`, uint8 [..., row_bytes(type, columns)].

    Raises UnsupportedError for a type without an encoder. Raises ModelError if the columns are not
    a whole number of blocks, if a scale is out of the range of float16, or for NaN and infinity in
    a quantised type.
    """
    layout = BLOCKS[type]
    encoder = ENCODERS.get(type)
    if encoder is None:
        raise UnsupportedError(
            f"zinc cannot encode {layout.name}",
            hint=f"use one of {', '.join(t.name for t in ENCODERS)}",
        )
    n_row_bytes = row_bytes(type, array.shape[-1])
    values = np.ascontiguousarray(array, np.float32).reshape(-1, layout.block_size)
    if layout.is_quantised and not np.isfinite(values).all():
        raise ModelError(f"the tensor cannot be {layout.name}", "it holds a NaN or an infinity")
    out = np.empty(len(values), layout.dtype)
    step = max(1, _CHUNK_ELEMENTS // layout.block_size)
    with np.errstate(all="ignore"):
        for start in range(0, len(values), step):
            chunk = encoder(values[start : start + step])
            out[start : start + step] = chunk.reshape(-1)
    return out.view(np.uint8).reshape(*array.shape[:-1], n_row_bytes)
