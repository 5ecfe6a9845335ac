"""A node of a graph: one application of an op to operands, which are looked up by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

from zinc.core.dataclass import dataclass
from zinc.ops.operands import SIGNATURES, Kind
from zinc.ops.step import Otherwise, StepCondition
from zinc.ops.values import (
    AttrValue,
    Constant,
    Input,
    KVState,
    RecurrentState,
    State,
    Value,
    Weight,
)


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an op. `label` names the part of the model it belongs to (`blk.3`)."""

    op: str
    inputs: tuple[Input, ...]
    outputs: tuple[Value, ...]
    attrs: Mapping[str, AttrValue] = field(default_factory=lambda: MappingProxyType({}))
    label: str = ""
    when: StepCondition | Otherwise | None = None  # None: in every step

    def input(self, name: str, part: int = 0) -> Input:
        """Return the operand `name` of the op, of part `part` if it is repeated."""
        return self.inputs[SIGNATURES[self.op].index(name, part)]

    def rows(self, name: str) -> Value:
        """Return the operand `name`, which must be rows."""
        found = self.input(name)
        assert isinstance(found, Value), f"operand {name} of {self.op} is {found}"
        return found

    def weight(self, name: str, part: int = 0) -> Weight:
        """Return the operand `name`, which must be a tensor of the model."""
        found = self.input(name, part)
        assert isinstance(found, Weight), f"operand {name} of {self.op} is {found}"
        return found

    def with_input(self, name: str, operand: Input) -> Node:
        """Return this node with another operand `name`."""
        at = SIGNATURES[self.op].index(name)
        return replace(self, inputs=(*self.inputs[:at], operand, *self.inputs[at + 1 :]))

    def check(self) -> None:
        """Raise AssertionError if an operand is missing, or of another kind than the op takes."""
        for operand, x in SIGNATURES[self.op].declared(self.inputs):
            if x is None:
                assert operand.optional, f"{self.op} at {self.label} lacks {operand.name}"
            else:
                kind = _kind(x)
                assert kind is operand.kind, f"{operand.name} of {self.op} is {kind}, not {x}"


def _kind(x: Value | Weight | Constant | State) -> Kind:
    match x:
        case Value():
            return Kind.ROWS
        case KVState():
            return Kind.CACHE
        case RecurrentState():
            return Kind.STATE
        case Weight() if not x.is_vector:
            return Kind.MATRIX
        case _:
            return Kind.VECTOR
