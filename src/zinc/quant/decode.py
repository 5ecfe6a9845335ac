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

DECODERS: dict[GGMLType, Decoder] = {
    GGMLType.F32: plain.number,
    GGMLType.F16: plain.number,
    GGMLType.BF16: plain.bf16,
    GGMLType.F64: plain.number,
    GGMLType.I8: plain.number,
    GGMLType.I16: plain.number,
    GGMLType.I32: plain.number,
    GGMLType.I64: plain.number,
    GGMLType.Q1_0: plain.q1_0,
    GGMLType.Q2_0: plain.q2_0,
    GGMLType.Q4_0: plain.q4_0,
    GGMLType.Q4_1: plain.q4_1,
    GGMLType.Q5_0: plain.q5_0,
    GGMLType.Q5_1: plain.q5_1,
    GGMLType.Q8_0: plain.q8,
    GGMLType.Q8_1: plain.q8,
    GGMLType.Q8_K: plain.q8,
    GGMLType.Q2_K: superblocks.q2_k,
    GGMLType.Q3_K: superblocks.q3_k,
    GGMLType.Q4_K: superblocks.q4_k,
    GGMLType.Q5_K: superblocks.q5_k,
    GGMLType.Q6_K: superblocks.q6_k,
    GGMLType.TQ1_0: superblocks.tq1_0,
    GGMLType.TQ2_0: superblocks.tq2_0,
    GGMLType.MXFP4: plain.mxfp4,
    GGMLType.NVFP4: plain.nvfp4,
    GGMLType.IQ1_S: codebook.iq1_s,
    GGMLType.IQ1_M: codebook.iq1_m,
    GGMLType.IQ2_XXS: codebook.iq2_xxs,
    GGMLType.IQ2_XS: codebook.iq2_xs,
    GGMLType.IQ2_S: codebook.iq2_s,
    GGMLType.IQ3_XXS: codebook.iq3_xxs,
    GGMLType.IQ3_S: codebook.iq3_s,
    GGMLType.IQ4_NL: codebook.iq4_nl,
    GGMLType.IQ4_XS: codebook.iq4_xs,
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
