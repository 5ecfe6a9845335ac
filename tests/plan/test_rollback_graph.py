"""Graphs whose recurrent states can be rolled back, and backends that cannot do it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from zinc.backends import api
from zinc.core.errors import UnsupportedError
from zinc.engine.cache_layout import state_bytes_per_sequence
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.ops.graph import Graph
from zinc.ops.recurrent import DeltaShape
from zinc.ops.recurrent_state import CHUNK
from zinc.ops.recurrent_step import delta_step_case
from zinc.ops.values import RecurrentState
from zinc.plan.planner import make_plan
from zinc.plan.rollback import rollback_graph

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
HYBRIDS = ["qwen35", "qwen35moe", "qwen3next"]


def graph_of(name: str) -> Graph:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return load(file)[1]


@pytest.mark.parametrize("name", HYBRIDS)
def test_only_recurrent_launches_change(name: str) -> None:
    graph, backend = graph_of(name), api.kernels("null")
    plain = make_plan(graph, backend, max_tokens=8, max_outputs=8)
    plan = make_plan(rollback_graph(graph), backend, max_tokens=8, max_outputs=8)
    assert plan.hash != plain.hash
    assert plan.arena_bytes == plain.arena_bytes
    for launch, before in zip(plan.launches, plain.launches, strict=True):
        states = [x for x in before.inputs if isinstance(x, RecurrentState)]
        if not states:
            assert launch == before
            continue
        assert launch.attributes == {**before.attributes, "rollback": CHUNK}
        (larger,) = (x for x in launch.inputs if isinstance(x, RecurrentState))
        assert launch == replace(
            before,
            inputs=tuple(larger if x in states else x for x in before.inputs),
            attrs=launch.attrs,
        )
        assert larger.name == states[0].name
        if "taps" in before.attributes:
            taps = int(before.attributes["taps"])
            assert larger.floats * (taps - 1) == states[0].floats * (taps - 1 + CHUNK)
        else:
            assert larger.floats == 2 * states[0].floats


@pytest.mark.parametrize("name", ["gemma3", "deepseek2"])
def test_attention_needs_nothing(name: str) -> None:
    graph = graph_of(name)
    assert rollback_graph(graph).nodes == graph.nodes


def test_a_backend_that_cannot_roll_back_is_refused() -> None:
    kernels = api.kernels("null")
    kernels.capabilities = replace(kernels.capabilities, rollback=False)
    with pytest.raises(UnsupportedError, match="the backend null cannot roll back recurrent"):
        make_plan(rollback_graph(graph_of("qwen35")), kernels, max_tokens=8, max_outputs=8)
    plain = make_plan(graph_of("gemma3"), kernels, max_tokens=8, max_outputs=8)
    same = make_plan(rollback_graph(graph_of("gemma3")), kernels, max_tokens=8, max_outputs=8)
    assert same.hash == plain.hash


# Qwen3.6 35B-A3B, Qwen3.6 27B and Qwen3.5 0.8B.
SHAPES = [
    DeltaShape(16, 32, 128, 128),
    DeltaShape(16, 48, 128, 128),
    DeltaShape(16, 16, 128, 128),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("rows", "most"), [(8, 2.1), (CHUNK, 2.25)])
def test_states_take_about_twice_the_memory(shape: DeltaShape, rows: int, most: float) -> None:
    graph = delta_step_case("layer", shape, (1,)).graph
    plain, larger = (
        make_plan(g, api.kernels("ref"), max_tokens=8, max_outputs=8).states
        for g in (graph, rollback_graph(graph, rows))
    )
    assert state_bytes_per_sequence(larger) <= most * state_bytes_per_sequence(plain)
