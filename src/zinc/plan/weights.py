"""Tensors of a file as the weights of a graph need them, before they are uploaded.

Almost always these are the bytes of the file. A part of a vector is cut out. A weight that must be
stored transposed is decoded and transposed once at load, because no block format can be transposed
in place. The factors of adapters are scaled and stored as float16.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from zinc.backends.api import ByteReader, TensorData
from zinc.formats.gguf import Tensor
from zinc.ops.values import FloatArray, Weight
from zinc.quant.blocks import GGMLType
from zinc.quant.decode import decode
from zinc.quant.encode import encode


def factor_data(a: FloatArray, b: FloatArray) -> tuple[TensorData, TensorData] | None:
    """Return the factors of an adapter as float16; None if they have numbers beyond it or NaN.

    A power of two, which does not change their product, moves both to the same part of the range.
    """
    tops = [float(np.abs(each).max()) for each in (a, b)]
    if all(tops) and np.isfinite(tops).all():
        shift = round((math.log2(tops[1]) - math.log2(tops[0])) / 2)
        a, b = np.ldexp(a, shift), np.ldexp(b, -shift)
    largest = np.finfo(np.float16).max
    if not all(np.abs(each).max() <= largest for each in (a, b)):
        return None
    data, more = (
        TensorData(GGMLType.F16, x.shape, encode(x.astype(np.float32), GGMLType.F16).reshape(-1))
        for x in (a, b)
    )
    return data, more


def tensor_data(weight: Weight, tensor: Tensor, reader: ByteReader | None = None) -> TensorData:
    """Return the data to upload for `weight`, from the `tensor` of the file that holds it.

    `reader` reads its bytes; by default `tensor` does. Raises FormatError if they cannot be read.
    """
    data = TensorData(tensor.type, tensor.shape, reader or tensor)
    if weight.is_vector and weight.rows_from is not None:
        part: FloatArray = decode(data.read(), tensor.type, tensor.shape)[list(weight.rows_from)]
        return TensorData(weight.type, weight.shape, encode(part, weight.type).reshape(-1))
    if weight.transposed_rows is None:
        return replace(data, shape=weight.shape)
    planes, rows, cols = weight.shape
    source = decode(data.read(), tensor.type, tensor.shape)[list(weight.transposed_rows)]
    turned: FloatArray = np.ascontiguousarray(source.reshape(planes, cols, rows).transpose(0, 2, 1))
    return TensorData(weight.type, weight.shape, encode(turned, weight.type).reshape(-1))
