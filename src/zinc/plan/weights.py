"""Bytes of a tensor as a graph's weight wants them, before a backend sees them.

Almost always these are the bytes of the file, without a copy. A weight that must be stored the
other way round is decoded and transposed here once: no block format can be transposed in place.
"""

from __future__ import annotations

import numpy as np

from zinc.backends.api import TensorData
from zinc.formats.gguf import Tensor
from zinc.ops.graph import FloatArray, Weight
from zinc.quant.encode import encode


def tensor_data(weight: Weight, tensor: Tensor) -> TensorData:
    """What to upload for `weight`, whose `tensor` is the one of that name in the file."""
    if weight.transposed_rows is None:
        return TensorData(tensor.type, weight.shape, tensor.data)
    planes, rows, cols = weight.shape
    source = tensor.to_float32()[list(weight.transposed_rows)]
    turned: FloatArray = np.ascontiguousarray(source.reshape(planes, cols, rows).transpose(0, 2, 1))
    return TensorData(weight.type, weight.shape, encode(turned, weight.type).reshape(-1))
