"""Tensors of a file as the weights of a graph need them, before they are uploaded.

Almost always these are the bytes of the file. A part of a vector is cut out. A weight that must be
stored transposed is decoded and transposed once at load, because no block format can be transposed
in place.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from zinc.backends.api import ByteReader, TensorData
from zinc.formats.gguf import Tensor
from zinc.ops.values import FloatArray, Weight
from zinc.quant.decode import decode
from zinc.quant.encode import encode


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
