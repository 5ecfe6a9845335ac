"""Declarations of the operands of an op, and access to operands by name.

A node and a launch hold their operands in a tuple. The op's `Signature` says which operand is at
which index, so that code asks for `node.input("residual")` and never counts.

    rms_norm   x  weight  residual
    linear     x  (weight  bias  residual) for each part
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, TypeVar

from zinc.core.dataclass import dataclass

T = TypeVar("T")


class Kind(StrEnum):
    """Kinds of operands: rows of activations, tensors of the model, and state of sequences."""

    ROWS = "rows"
    MATRIX = "matrix"
    VECTOR = "vector"
    CACHE = "cache"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Operand:
    """The declaration of an operand: its name, its kind and how the op uses it.

    optional: may be absent (None).
    repeated: belongs to the group that occurs once for each output.
    in_place: an output may be stored in the bytes of this operand, if nothing reads it later.
    residual: is added to the output.
    overwritten: kernels may change these rows, so nothing may read them later, except for rows that
    the step leaves to the host.
    weight_format: the kernel reads these rows in the row format that the op's matrices need.
    any_format: the kernel reads these rows in the row format in which they are stored anyway.
    written: is a state that the op changes.
    read: is read by the op; only ops that store keys and values do not read their cache.
    """

    name: str
    kind: Kind
    optional: bool = False
    repeated: bool = False
    in_place: bool = False
    residual: bool = False
    overwritten: bool = False
    weight_format: bool = False
    any_format: bool = False
    written: bool = False
    read: bool = True


def rows(name: str, **facts: bool) -> Operand:
    """Declare rows of activations, float32 [rows, cols] in the reference."""
    return Operand(name, Kind.ROWS, **facts)


def matrix(name: str, **facts: bool) -> Operand:
    """Declare a matrix of the model, [rows, cols] or [planes, rows, cols]."""
    return Operand(name, Kind.MATRIX, **facts)


def vector(name: str, **facts: bool) -> Operand:
    """Declare a float32 vector [cols] of the model, or one computed at load."""
    return Operand(name, Kind.VECTOR, **facts)


def cache(name: str, **facts: bool) -> Operand:
    """Declare the KV cache of a layer."""
    return Operand(name, Kind.CACHE, **facts)


def state(name: str, **facts: bool) -> Operand:
    """Declare the recurrent state of a layer."""
    return Operand(name, Kind.STATE, **facts)


@dataclass(frozen=True, slots=True)
class Signature:
    """The operands of an op, in order. Repeated operands come last and form one group.

    A node has the single operands once, and the group once for each of its parts.
    """

    operands: tuple[Operand, ...]
    n_single: int = field(init=False, compare=False)  # operands that occur once
    n_repeated: int = field(init=False, compare=False)  # operands in the repeated group
    _indices: Mapping[str, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = [x.name for x in self.operands]
        assert len(set(names)) == len(names), f"two operands have one name: {names}"
        repeats = [x.repeated for x in self.operands]
        assert repeats == sorted(repeats), "repeated operands must come last"
        object.__setattr__(self, "n_single", repeats.count(False))
        object.__setattr__(self, "n_repeated", repeats.count(True))
        object.__setattr__(self, "_indices", {name: i for i, name in enumerate(names)})

    def operand(self, name: str) -> Operand:
        """Return the declaration of the operand `name`. Raises KeyError."""
        return self.operands[self.index(name)]

    def index(self, name: str, part: int = 0) -> int:
        """Return the index of the operand `name`, of part `part` if it is repeated.

        Raises KeyError.
        """
        if name not in self._indices:
            raise KeyError(f"no operand {name} among {', '.join(self._indices)}")
        index = self._indices[name]
        return index + part * self.n_repeated if index >= self.n_single else index

    def n_parts(self, inputs: Sequence[object]) -> int:
        """Return how often the repeated group occurs in `inputs`; 1 if there is no such group."""
        if not self.n_repeated:
            return 1
        return (len(inputs) - self.n_single) // self.n_repeated

    def declared(self, inputs: Sequence[T]) -> Iterator[tuple[Operand, T]]:
        """Yield each operand of `inputs` with its declaration."""
        group = self.operands[self.n_single :]
        declarations = (*self.operands[: self.n_single], *group * self.n_parts(inputs))
        return zip(declarations, inputs, strict=True)

    def named(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return `inputs` by operand name. A repeated operand is the list of its parts."""
        found: dict[str, Any] = {}
        for x, value in self.declared(inputs):
            if x.repeated:
                found.setdefault(x.name, []).append(value)
            else:
                found[x.name] = value
        return found

    @property
    def residual(self) -> Operand | None:
        """The operand that is added to the output, if the op takes one."""
        return next((x for x in self.operands if x.residual), None)

    @property
    def in_place(self) -> Operand | None:
        """The operand whose bytes an output may take over, if there is one."""
        return next((x for x in self.operands if x.in_place), None)

    @property
    def any_format(self) -> Operand | None:
        """The rows that are read in any row format, if there are any."""
        return next((x for x in self.operands if x.any_format), None)

    @property
    def weight_format(self) -> Operand | None:
        """The rows that are read in the format of the op's matrices, if there are any."""
        return next((x for x in self.operands if x.weight_format), None)


SIGNATURES: dict[str, Signature] = {}
"""The signature of each op by name, added by the decorator `zinc.ops.registry.op`."""
