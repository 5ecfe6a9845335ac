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

# The function of each type in quant/encoders has the name of the type in lower case.
ENCODERS: dict[GGMLType, Encoder] = {
    type: getattr(module, type.name.lower())
    for type in GGMLType
    for module in (plain, superblocks)
    if hasattr(module, type.name.lower())
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
