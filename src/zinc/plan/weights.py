"""Tensors of a file as the weights of a graph need them, before they are uploaded.

Almost always these are the bytes of the file. If a weight is a part of a matrix, only that part is
read; a part of a vector is copied from the whole vector. A weight that must be stored transposed is
decoded and transposed once at load, because no block format can be transposed in place. The factors
of adapters are scaled and stored as float16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from zinc.backends.api import ByteReader, TensorData
from zinc.core.rounding import ceil_div
from zinc.formats.gguf import Tensor
from zinc.ops.values import Box, FloatArray, Weight
from zinc.quant.blocks import GGMLType, row_bytes
from zinc.quant.decode import decode
from zinc.quant.encode import encode

_CHUNK_BYTES = 1 << 20


class BoxReader:
    """Reader of a part of a matrix in a file. Implements `zinc.backends.api.ByteReader`.

    Whole rows are read in chunks, and their columns copied.
    """

    def __init__(self, source: ByteReader, type: GGMLType, box: Box) -> None:
        self._source, self._box = source, box
        self._stored_bytes = row_bytes(type, box.shape[-1])  # of a row in the file
        self._columns = [slice(row_bytes(type, x.start), row_bytes(type, x.stop)) for x in box.cols]
        self._row_bytes = sum(row_bytes(type, len(x)) for x in box.cols)
        self._n_bytes = len(box.planes) * len(box.rows) * self._row_bytes

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def read_into(self, target: npt.NDArray[np.uint8], start: int = 0) -> None:
        """Fill `target` with the bytes starting at `start`. Raises FormatError."""
        n_rows = max(1, _CHUNK_BYTES // self._stored_bytes)
        scratch = np.empty((n_rows, self._stored_bytes), np.uint8)
        done = 0
        while done < target.nbytes:
            row, skipped = divmod(start + done, self._row_bytes)
            plane, row = divmod(row, len(self._box.rows))
            wanted = ceil_div(skipped + target.nbytes - done, self._row_bytes)
            rows = scratch[: min(n_rows, wanted, len(self._box.rows) - row)]
            plane += self._box.planes.start
            stored = plane * self._box.shape[-2] + self._box.rows.start + row
            self._source.read_into(rows.reshape(-1), stored * self._stored_bytes)
            part = np.concatenate([rows[:, each] for each in self._columns], axis=1)
            found = part.reshape(-1)[skipped:][: target.nbytes - done]
            target[done : done + len(found)] = found
            done += len(found)


def ranges_text(ranges: Sequence[range]) -> str:
    """Return ranges as text, such as "0:8+16:24"."""
    return "+".join(f"{x.start}:{x.stop}" for x in ranges)


def matrix_part(weight: Weight, planes: range, rows: range, cols: Sequence[range]) -> Weight:
    """Return some planes of a matrix, some rows of each, and some columns."""
    first = 0 if weight.rows_from is None else weight.rows_from[0]
    n_cols = sum(map(len, cols))
    kept = [
        (len(planes) == weight.planes, [planes]),
        (len(rows) == weight.rows, [rows]),
        (n_cols == weight.cols, cols),
    ]
    parts = [":" if is_whole else ranges_text(ranges) for is_whole, ranges in kept]
    if parts == [":", ":", ":"]:
        return weight
    while parts[-1] == ":":
        parts.pop()
    part = parts if weight.planes > 1 else parts[1:]
    return replace(
        weight,
        name=f"{weight.name}[{', '.join(part)}]",
        shape=(len(planes), len(rows), n_cols)[-len(weight.shape) :],
        rows_from=None,
        source=weight.tensor,
        box=Box(planes, range(first + rows.start, first + rows.stop), tuple(cols), weight.shape),
    )


def factor_data(a: FloatArray, b: FloatArray) -> tuple[TensorData, TensorData] | None:
    """Return the factors of an adapter as float16; None for NaN or numbers beyond float16.

    `a` is multiplied and `b` divided by a power of two, so that their largest numbers are about
    equal. That does not change their product.
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


def factor_part(weight: Weight, data: TensorData) -> TensorData:
    """Return the data to upload for `weight`, which is a factor of an adapter or a part of one."""
    if weight.box is None:
        return data
    rows, cols = list(weight.box.rows), [i for each in weight.box.cols for i in each]
    part = data.read().view(np.float16).reshape(data.shape)[np.ix_(rows, cols)]
    stored = np.ascontiguousarray(part).view(np.uint8).reshape(-1)
    return TensorData(data.type, weight.shape, stored)


def tensor_data(weight: Weight, tensor: Tensor, reader: ByteReader | None = None) -> TensorData:
    """Return the data to upload for `weight`, from the `tensor` of the file that holds it.

    `reader` reads its bytes; by default `tensor` does. Raises FormatError if they cannot be read.
    """
    data = TensorData(tensor.type, tensor.shape, reader or tensor)
    if weight.is_vector and weight.rows_from is not None:
        part: FloatArray = decode(data.read(), tensor.type, (tensor.n_elements,))[
            list(weight.rows_from)
        ]
        return TensorData(weight.type, weight.shape, encode(part, weight.type).reshape(-1))
    if weight.box is not None:
        part_reader = BoxReader(reader or tensor, tensor.type, weight.box)
        return TensorData(tensor.type, weight.shape, part_reader)
    if weight.transposed_rows is None:
        return replace(data, shape=weight.shape)
    planes, rows, cols = weight.shape
    source = decode(data.read(), tensor.type, tensor.shape)[list(weight.transposed_rows)]
    turned: FloatArray = np.ascontiguousarray(source.reshape(planes, cols, rows).transpose(0, 2, 1))
    return TensorData(weight.type, weight.shape, encode(turned, weight.type).reshape(-1))
