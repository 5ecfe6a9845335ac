"""Types of the native module, which native/module.cpp implements."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Ints: TypeAlias = NDArray[np.int32]
_Floats: TypeAlias = NDArray[np.float32]

Rows: TypeAlias = tuple[str, int, int, int]
"""Rows in the arena: row format, columns, offset in bytes, bytes from row to row."""

Operand: TypeAlias = PackedTensor | KVLayer | StateLayer | Rows | None

def built_levels() -> list[str]:
    """Return the SIMD levels of this build, best first."""

def levels() -> list[str]:
    """Return the SIMD levels of this build that this machine runs, best first."""

def kernels(level: str) -> list[str]: ...
def row_format(level: str, type: str) -> str:
    """Return the format of rows that are multiplied with such weights. Raises KeyError."""

def packable(level: str, type: str) -> bool: ...
def row_bytes(format: str, cols: int) -> int:
    """Return the bytes from row to row in a row format, a multiple of 64."""

def allocate(level: str, type: str, planes: int, rows: int, cols: int) -> PackedTensor:
    """Make a tensor for `pack_tiles` to fill. Raises ValueError."""

def pack_tiles(
    pool: Pool,
    tensor: PackedTensor,
    first_tile: int,
    data: NDArray[np.uint8],
    codebook: NDArray[np.uint8] | None = None,
) -> int:
    """Fill tiles of 16 rows starting at `first_tile` with consecutive rows of a GGUF tensor.

    The rows must end with the last row of a tile; the last tile of a plane may be partly filled.
    Returns the index after the last tile that was filled. Raises ValueError. `codebook`: as for
    `pack`.
    """

def pack(
    pool: Pool,
    level: str,
    type: str,
    data: NDArray[np.uint8],
    planes: int,
    rows: int,
    cols: int,
    row_index: NDArray[np.int64] | None = None,
    codebook: NDArray[np.uint8] | None = None,
) -> PackedTensor:
    """Pack all rows of a GGUF tensor, or the rows in `row_index`. Raises ValueError.

    `codebook`: for the IQ types that have one, the flat digits of zinc.quant.codebooks.
    """

def pack_vector(data: _Floats) -> PackedTensor: ...
def bandwidth(pool: Pool, n_bytes: int, reps: int) -> float:
    """Measure read bandwidth in GB/s."""

def int8_peak(pool: Pool, level: str) -> float:
    """Measure 8-bit multiply-adds in GOPS; each counts as two operations."""

class Pool:
    def __init__(self, n_threads: int) -> None: ...
    @property
    def n_threads(self) -> int: ...

class PackedTensor:
    @property
    def format(self) -> str: ...
    @property
    def planes(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    def to_float32(self) -> _Floats:
        """Decode the tensor to [planes, rows, cols]."""

class KVLayer:
    def __init__(
        self,
        group: int,
        n_blocks: int,
        block_tokens: int,
        n_heads: int,
        head_dim: int,
        head_dim_v: int,
        dtype: str,
        v_from_k: bool = False,
    ) -> None: ...
    @property
    def group(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    def copy_block(self, src: int, dst: int) -> None: ...
    def read(self, blocks: _Ints, n_tokens: int) -> tuple[_Floats, _Floats]:
        """Decode positions [0, n_tokens) to keys and values, [tokens, heads, dim] each."""
    def view(self, values: bool) -> NDArray[np.uint8]:
        """Return a view of the bytes of all keys, or values: [blocks, bytes of a block]."""

class StateLayer:
    def __init__(self, slots: int, floats_per_slot: int) -> None: ...
    @property
    def n_bytes(self) -> int: ...
    def view(self) -> _Floats:
        """Return a view of the states: [slots, floats_per_slot]."""

class Program:
    def __init__(self, pool: Pool, level: str, arena_bytes: int) -> None: ...
    def __len__(self) -> int: ...
    def add(
        self,
        kernel: str,
        dim: str,
        constant_rows: int,
        ins: Sequence[Operand],
        outs: Sequence[Operand],
        attrs: dict[str, float],
    ) -> int:
        """Append a launch and return its index. Raises ValueError if its operands do not fit."""

    def step(
        self,
        ids: _Ints,
        positions: _Ints,
        sequence: _Ints,
        output_rows: _Ints,
        seq_start: _Ints,
        state_slot: _Ints,
        tables: list[_Ints],
        adapters: _Floats | None = None,
    ) -> None:
        """Run all launches without the GIL. Raises ValueError if the batch is inconsistent."""

    def run(
        self,
        first: int,
        last: int,
        ids: _Ints,
        positions: _Ints,
        sequence: _Ints,
        output_rows: _Ints,
        seq_start: _Ints,
        state_slot: _Ints,
        tables: list[_Ints],
        adapters: _Floats | None = None,
    ) -> None:
        """Run launches [first, last)."""

    def view(self, offset: int, rows: int, cols: int, stride_bytes: int) -> _Floats:
        """Return a view of float rows of the arena."""

    def read(self, format: str, offset: int, rows: int, cols: int, stride_bytes: int) -> _Floats:
        """Decode rows of any row format to floats."""

    def bytes_view(self, offset: int, n_bytes: int) -> NDArray[np.uint8]: ...
    def set_profile(self, on: bool) -> None: ...
    def times_ns(self) -> list[int]:
        """Return the total time of each launch since set_profile(True)."""
