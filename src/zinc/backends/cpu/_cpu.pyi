"""Types of the native module; native/module.cpp is the code."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Ints: TypeAlias = NDArray[np.int32]
_Floats: TypeAlias = NDArray[np.float32]

Rows: TypeAlias = tuple[str, int, int, int]
"""Activation rows in the arena: format, columns, offset in bytes, bytes from row to row."""

Operand: TypeAlias = PackedTensor | KVLayer | StateLayer | Rows | None

def levels() -> list[str]:
    """SIMD levels that this machine runs, best first."""

def kernels(level: str) -> list[str]: ...
def row_format(level: str, ggml_type: int) -> str:
    """Format of the activations that a product with such weights reads. Raises KeyError."""

def packable(level: str, ggml_type: int) -> bool: ...
def row_bytes(format: str, cols: int) -> int:
    """Bytes from row to row in the row format `format`, a multiple of 64."""

def allocate(level: str, ggml_type: int, planes: int, rows: int, cols: int) -> PackedTensor:
    """Make a tensor for `pack_tiles` to fill. Raises ValueError."""

def pack_tiles(
    pool: Pool,
    tensor: PackedTensor,
    first_tile: int,
    data: NDArray[np.uint8],
    codebook: NDArray[np.uint8] | None = None,
) -> int:
    """Fill tiles of 16 rows from `first_tile` on with consecutive rows of a GGUF tensor.

    The rows start with that tile and end with a tile; each plane ends with a tile of the rows that
    are left. Returns the tile behind the last one that is filled. Raises ValueError. `codebook`: as
    for `pack`.
    """

def pack(
    pool: Pool,
    level: str,
    ggml_type: int,
    data: NDArray[np.uint8],
    planes: int,
    rows: int,
    cols: int,
    row_index: NDArray[np.int64] | None = None,
    codebook: NDArray[np.uint8] | None = None,
) -> PackedTensor:
    """Repack the rows of a GGUF tensor; with `row_index`, its rows gathered. Raises ValueError.

    `codebook`: for the IQ types that have one, the flat digits of zinc.quant.codebooks.
    """

def pack_vector(data: _Floats) -> PackedTensor: ...
def bandwidth(pool: Pool, n_bytes: int, reps: int) -> float:
    """Measured read rate of the memory in GB/s."""

def int8_peak(pool: Pool, level: str) -> float:
    """Measured rate of 8-bit multiply-adds in GOPS, two operations each."""

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
        """The values, decoded out of the packed form: [planes, rows, cols]."""

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
        """Keys and values of positions [0, n_tokens): [tokens, heads, dim] each."""
    def view(self, values: bool) -> NDArray[np.uint8]:
        """Keys, or values, as they lie in memory, shared: [blocks, bytes of a block]."""

class StateLayer:
    def __init__(self, slots: int, floats_per_slot: int) -> None: ...
    @property
    def n_bytes(self) -> int: ...
    def view(self) -> _Floats:
        """The states themselves, shared: [slots, floats_per_slot]."""

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
        """Append a launch and return its index. Raises ValueError when operands do not fit it."""

    def step(
        self,
        ids: _Ints,
        positions: _Ints,
        sequence: _Ints,
        output_rows: _Ints,
        seq_start: _Ints,
        state_slot: _Ints,
        tables: list[_Ints],
    ) -> None:
        """Run all launches without the GIL. Raises ValueError when the batch is impossible."""

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
    ) -> None:
        """Launches [first, last) alone."""

    def view(self, offset: int, rows: int, cols: int, stride_bytes: int) -> _Floats:
        """Float rows of the arena, shared."""

    def read(self, format: str, offset: int, rows: int, cols: int, stride_bytes: int) -> _Floats:
        """A copy of rows in any row format, as floats."""

    def bytes_view(self, offset: int, n_bytes: int) -> NDArray[np.uint8]: ...
    def set_profile(self, on: bool) -> None: ...
    def times_ns(self) -> list[int]:
        """Time of each launch since set_profile(True)."""
