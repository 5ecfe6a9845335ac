"""The operands and results of nodes: values, weights, constants and states."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum, StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.quant.blocks import GGMLType

FloatArray: TypeAlias = npt.NDArray[np.float32]


class Dim(StrEnum):
    """The kind of a row of a value, which gives the number of rows in a step."""

    TOKENS = "tokens"
    OUTPUTS = "outputs"
    SEQUENCES = "sequences"
    CONSTANT = "constant"


class RowFormat(StrEnum):
    """Storage formats of the rows of a value. A graph is all F32; the plan chooses the others."""

    F32 = "f32"
    Q8_32 = "q8_32"
    Q8_256 = "q8_256"
    Q15_32 = "q15_32"
    BF16 = "bf16"


class ActivationFn(IntEnum):
    """Activation functions of feed-forward layers, as kernels number them."""

    SILU = 0
    GELU = 1  # tanh form
    RELU_SQUARED = 2
    CLAMPED_SWIGLU = 3  # of gpt-oss, with attributes `alpha` and `limit`
    GELU_ERF = 4  # exact, with the error function
    IDENTITY = 5  # so that a gate and its input are multiplied
    LIMITED_SILU = 6  # with the attribute `limit`
    SIGMOID = 7


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a matrix of `shape`: planes, rows of each, and whole blocks of columns."""

    planes: range
    rows: range
    cols: tuple[range, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model file: a matrix [planes, rows, cols] or a float32 vector [cols].

    rows_from: the source row of each row, if the file has rows in another order or the weight is a
    part of a tensor. Then `shape` is that of the tensor (of a part of a vector, that of the part),
    `source` the name of the tensor, and `name` distinguishes the parts of one tensor.
    transposed_rows: these rows of the source are divided into planes, and each plane is transposed
    at load (zinc.plan.weights). box: the weight is this part of the source, and `shape` is that of
    the part.
    """

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    rows_from: tuple[int, ...] | range | None = None
    source: str = field(default="", repr=False)
    transposed_rows: tuple[int, ...] | None = field(default=None, repr=False)
    box: Box | None = field(default=None, repr=False)

    @property
    def tensor(self) -> str:
        """Name of the tensor in the file."""
        return self.source or self.name

    @property
    def is_vector(self) -> bool:
        """Whether the weight is a float32 vector."""
        return len(self.shape) == 1

    @property
    def planes(self) -> int:
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def rows(self) -> int:
        return len(self.rows_from) if self.rows_from is not None else self.shape[-2]

    @property
    def cols(self) -> int:
        return self.shape[-1]


@dataclass(frozen=True, slots=True)
class Constant:
    """A float32 vector that is computed at load (RoPE frequencies)."""

    name: str
    values: tuple[float, ...]

    @property
    def cols(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class KVState:
    """The KV cache of one layer. `window` is the number of last positions it keeps, 0 for all.

    With `v_from_k` the value of a position is the last head_dim_v dimensions of its key (latent
    attention), so only keys are stored.
    """

    name: str
    n_heads: int
    head_dim: int
    head_dim_v: int
    window: int = 0
    v_from_k: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """The recurrent state of one layer: `floats` float32 numbers for each sequence, in its slot.

    Unlike a KV cache it does not grow with the context. Each position of a sequence is processed
    once, in order, because the state of an earlier position cannot be restored, except that of the
    last few with `rollback` (zinc.ops.recurrent_state). The op that uses the state defines its
    contents. A sequence whose step has position 0 starts from zeros, whatever the slot holds.
    """

    name: str
    floats: int


@dataclass(frozen=True, slots=True)
class Value:
    """A matrix [rows of `dim`, cols] that a node computes.

    Its columns may consist of `runs` that are read separately (one for each expert of a token). In
    formats other than F32 each run is stored as a row of its own, so that no block spans two runs.
    """

    id: int
    dim: Dim
    cols: int
    format: RowFormat = RowFormat.F32
    runs: int = field(default=1, repr=False)


State: TypeAlias = KVState | RecurrentState
Input: TypeAlias = Value | Weight | Constant | State | None
AttrValue: TypeAlias = int | float
