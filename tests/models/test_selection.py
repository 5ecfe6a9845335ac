"""Output rows are selected as early as possible, and no logit changes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from models.harness import FIXTURES, fixture_names

from zinc.backends import api
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.models.parts.selection import MAX_SELECTED, select_early
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.graph import Graph
from zinc.ops.values import Dim
from zinc.plan.planner import make_plan
from zinc.quant.blocks import BLOCKS
from zinc.testing.parity import every_case

# The order of slots is that of other rows when some are left out.
LEFT_OUT = ("sample", "select_rows", "group_experts")
FORMATS = {block.name for block in BLOCKS.values()}
CASES = [(op.name, case) for op, case in every_case() if op.name not in LEFT_OUT]


def selected_early(graph: Graph) -> Graph:
    found = copy(graph)
    found.nodes = list(graph.nodes)
    select_early(found)
    return found


def run(case: Case, graph: Graph, rows: Sequence[int]) -> np.ndarray:
    """Run the step of a case on the reference backend; return its output rows."""
    backend, n = api.create("ref"), case.max_tokens
    plan = make_plan(graph, backend, max_tokens=n, max_outputs=n, fuse=False)
    step = replace(case.step(BLOCK_TOKENS), output_rows=np.array(rows, np.int32))
    return np.array(bind_case(backend, case, plan, step).step(step))


def marks(case: Case) -> list[pytest.MarkDecorator]:
    """Return the marks of a case: the format of weights does not matter, so two run by default."""
    format = case.name.partition("-")[0]
    return [pytest.mark.every] if format in FORMATS - {"F16", "Q4_K"} else []


@pytest.mark.alike(24)
@pytest.mark.parametrize(
    ("op", "case"),
    [pytest.param(op, case, id=f"{op}-{case.name}", marks=marks(case)) for op, case in CASES],
)
def test_row_wise_ops_give_the_same_rows_for_selected_rows(op: str, case: Case) -> None:
    rows = [case.n_tokens - 1, *range(0, case.n_tokens - 1, 3)]
    want = run(case, case.graph, rows)
    early = selected_early(case.graph)
    np.testing.assert_allclose(run(case, early, rows), want, rtol=1e-5, atol=1e-5)


def moved_ops(graph: Graph) -> set[str]:
    """Return the ops of the graph whose output has one row for each output, except selections."""
    made = {n.op for n in graph.nodes if any(v.dim is Dim.OUTPUTS for v in n.outputs)}
    return made - {"select_rows"}


def test_every_row_wise_op_can_be_moved() -> None:
    in_graphs = {node.op for _, case in CASES for node in case.graph.nodes}
    row_wise = {name for name, op in OPS.items() if op.row_wise} & in_graphs
    row_wise.remove("rope")  # comes before an attention
    assert set().union(*(moved_ops(selected_early(case.graph)) for _, case in CASES)) == row_wise


@pytest.mark.parametrize("name", fixture_names())
def test_only_output_rows_follow_the_last_mixer(name: str) -> None:
    """A mixer is an op that reads other rows of a sequence: attention, scan or convolution."""
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        spec, graph = load(file)
    ops = [node.op for node in graph.nodes]
    last = max(i for i, op in enumerate(ops) if OPS[op].reads_cache or OPS[op].rollback)
    selections = [i for i, op in enumerate(ops) if op == "select_rows"]
    assert last < selections[0]
    assert len(selections) <= MAX_SELECTED
    assert selections == list(range(selections[0], selections[-1] + 1))
    behind = graph.nodes[selections[-1] + 1 :]
    assert {v.dim for node in behind for v in node.outputs} <= {Dim.OUTPUTS, Dim.CONSTANT}
    labels = {node.label for node in behind if node.op in ("linear", "moe_down")}
    first = int(graph.nodes[last].label.removeprefix("blk."))
    assert first >= spec.n_layers - 2
    assert labels == {*(f"blk.{i}" for i in range(first, spec.n_layers)), "head"}
