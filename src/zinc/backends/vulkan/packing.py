"""Weights in the layout that kernels read: float32 and 16-bit rows as the file has them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zinc.core.errors import UnsupportedError
from zinc.ops.graph import Act
from zinc.quant.blocks import GGMLType
from zinc.quant.blocks import row_bytes as file_row_bytes

Bytes: TypeAlias = npt.NDArray[np.uint8]
FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def activation(type: GGMLType) -> Act:
    """The format in which products with weights of `type` read rows. Raises UnsupportedError."""
    if type not in FLOATS:
        raise UnsupportedError(
            f"the Vulkan backend cannot run weights of type {type.name}",
            "it has no kernel that decodes them",
            "use a file in another quantisation, or --backend cpu",
        )
    return Act.F32


def row_bytes(act: Act, cols: int) -> int:
    """Bytes from row to row of an activation."""
    if act is Act.Q8_32:
        return -(-(-(-cols // 16) * 16 + 8 * -(-cols // 32)) // 16) * 16
    return 4 * cols


def pack(
    type: GGMLType,
    data: Bytes,
    planes: int,
    rows: int,
    cols: int,
    rows_from: npt.NDArray[np.int64] | None = None,
) -> Bytes:
    """The device's bytes of a matrix [planes, rows, cols] from those of the file."""
    source = data.reshape(-1, file_row_bytes(type, cols))
    return (source if rows_from is None else source[rows_from]).reshape(-1)
