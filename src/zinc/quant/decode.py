"""Decoding of tensor data to float32, the reference that every kernel is tested against.

`decode` is bit-exact with ggml's reference and gguf-py for every type in the block table. It works
on a few thousand blocks at a time, so temporaries stay in the CPU cache and take little memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from zinc.core.errors import ModelError, UnsupportedError
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes
from zinc.quant.decoders import codebook, plain, superblocks

_CHUNK_ELEMENTS = 1 << 16

Decoder = Callable[[NDArray[np.void]], NDArray[np.float32]]

# The function of each type in quant/decoders has the name of the type in lower case.
DECODERS: dict[GGMLType, Decoder] = {
    type: getattr(module, type.name.lower())
    for type in GGMLType
    for module in (plain, superblocks, codebook)
    if hasattr(module, type.name.lower())
}


def decode(data: NDArray[np.uint8], type: GGMLType, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Decode the bytes of a tensor to a new float32 array of `shape` (rows, columns).

    Raises ModelError if the last dimension is not a whole number of blocks or `data` has the wrong
    size, and UnsupportedError for a type without a decoder.
    """
    layout = BLOCKS[type]
    decoder = DECODERS.get(type)
    if decoder is None:
        raise UnsupportedError(f"zinc cannot decode {layout.name}")
    n_elements = math.prod(shape)
    n_columns = shape[-1] if shape else 1
    needed = row_bytes(type, n_columns) * (n_elements // n_columns if n_columns else 0)
    if data.nbytes != needed:
        raise ModelError(
            f"cannot decode a {layout.name} tensor of shape {shape}",
            f"it takes {needed} bytes and the data has {data.nbytes}",
        )
    blocks = np.ascontiguousarray(data).reshape(-1).view(np.uint8).view(layout.dtype)
    out = np.empty((len(blocks), layout.block_size), np.float32)
    step = max(1, _CHUNK_ELEMENTS // layout.block_size)
    # Damaged scales may be infinities or NaNs, which decode as IEEE 754 says.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            out[start : start + step] = decoder(blocks[start : start + step])
    return out.reshape(shape)
