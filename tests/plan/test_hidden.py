"""Without its output projection, the graph of every model ends at the final norm."""

from __future__ import annotations

from pathlib import Path

import pytest

from zinc.backends import api
from zinc.core.errors import UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.models.parts.spec import Norm
from zinc.ops.graph import Graph
from zinc.ops.values import Dim
from zinc.plan.hidden import hidden_graph
from zinc.plan.planner import make_plan

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


@pytest.mark.alike(30)
@pytest.mark.parametrize("name", sorted(p.stem for p in FIXTURES.glob("*.gguf")))
def test_the_graph_without_its_projection_ends_in_the_final_norm(name):
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        spec, graph = load(file)
    backend = api.create("ref")
    whole = make_plan(graph, backend, max_tokens=8, max_outputs=8)
    plan = make_plan(hidden_graph(graph), backend, max_tokens=8, max_outputs=8)
    assert (plan.output.cols, plan.output.dim) == (spec.hidden, Dim.OUTPUTS)
    last = plan.launches[-1]
    norm = "rms_norm" if spec.norm is Norm.RMS else "layer_norm"
    assert (last.kernel, last.label, last.outputs) == (norm, "head", (plan.output,))
    assert plan.states == whole.states
    n = len(plan.launches)
    assert [launch.kernel for launch in whole.launches[:n]] == [x.kernel for x in plan.launches]


def test_a_graph_without_a_projection_is_refused():
    g = Graph()
    x = g.value(Dim.TOKENS, 8)
    g.output = g.select_rows(x)
    with pytest.raises(UnsupportedError, match="hidden states"):
        hidden_graph(g)
