"""Recurrent states as references see them, and the layout from which a sequence can be rolled back.

A recurrent state belongs to one position: the one after the last row that ran. With the attribute
`rollback`, an op keeps in its slot what it needs to continue from any position p after which at
most `rollback` rows have run. The caller rolls the sequence back by passing p as the next position.
Nothing is copied or run again, and later rows get the same bits as if the rejected rows had never
run.

An op with recurrent state says in its entry (`Op.rollback`) how its node changes;
`zinc.plan.rollback` applies that to a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from zinc.core.dataclass import dataclass
from zinc.ops.node import Node
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RecurrentState

# Positions [CHUNK i, CHUNK i + CHUNK) form a chunk, however a prompt was split into steps. It is
# also the largest `rollback`.
CHUNK = 16


@dataclass(slots=True)
class StateView:
    """The states of one layer in `ref`: float32 [slots, floats]."""

    slots: FloatArray

    def at(self, step: Step, sequence: int) -> FloatArray:
        """Return the state that a sequence continues from, to be changed in place."""
        state: FloatArray = self.slots[step.state_slot[sequence]]
        if step.positions[step.seq_start[sequence]] == 0:
            state[:] = 0
        return state


def sequences(step: Step) -> Iterator[tuple[int, slice]]:
    """Yield each sequence that has tokens in the step, and the slice of its token rows."""
    for s in range(step.n_sequences):
        rows = slice(int(step.seq_start[s]), int(step.seq_start[s + 1]))
        if rows.start < rows.stop:
            yield s, rows


def with_rollback(node: Node, rows: int, floats: int) -> Node:
    """Return `node` with a rollback of `rows` rows, at most CHUNK, and a state of `floats`."""
    assert 0 < rows <= CHUNK
    state = node.input("state")
    assert isinstance(state, RecurrentState)
    attrs = MappingProxyType({**node.attrs, "rollback": rows})
    return replace(node.with_input("state", replace(state, floats=floats)), attrs=attrs)
