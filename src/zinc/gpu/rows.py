"""Layout of rows of activations in device memory.

A row of Q8_32 consists of int8 numbers, padded to 16 bytes, and of two float32 numbers for each
block of 32: its scale, and the sum of its int8 numbers times the scale.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zinc.core.rounding import ceil_div, round_up
from zinc.ops.values import FloatArray, RowFormat

BLOCK = 32


def row_bytes(format: RowFormat, cols: int) -> int:
    """Return the bytes from row to row. Raises NotImplementedError for a format without kernels."""
    if format is RowFormat.Q8_32:
        return round_up(round_up(cols, 16) + 8 * ceil_div(cols, BLOCK), 16)
    if format is RowFormat.F32:
        return 4 * cols
    raise NotImplementedError(f"GPU kernels have no rows of format {format}")


def unscaled_row_bytes(cols: int) -> int:
    """Return the bytes from row to row of unscaled rows, which products after an RMS norm read.

    An unscaled row is a row of Q8_32, followed by a float32 sum of squares for each block.
    """
    return round_up(row_bytes(RowFormat.Q8_32, cols) + 4 * ceil_div(cols, BLOCK), 16)


def decode_q8_rows(data: npt.NDArray[np.uint8], cols: int, runs: int) -> FloatArray:
    """Return float32 [rows, cols] of rows of Q8_32, uint8 [rows, stride].

    Each row consists of `runs` rows of cols / runs columns, side by side.
    """
    size, cols = data.shape[1] // runs, cols // runs
    parts = []
    for i in range(runs):
        row = np.ascontiguousarray(data[:, i * size : (i + 1) * size])
        numbers = row[:, :cols].view(np.int8).astype(np.float32)
        after = row[:, round_up(cols, 16) :][:, : 8 * ceil_div(cols, BLOCK)]
        scales = np.ascontiguousarray(after).view(np.float32)[:, ::2]
        parts.append(numbers * np.repeat(scales, BLOCK, axis=1)[:, :cols])
    return np.concatenate(parts, axis=1)
