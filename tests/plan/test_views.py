"""Views of columns: read in place without a launch or copy, and kept alive by their readers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zinc.backends import api
from zinc.backends.api import CacheLayout, TensorData
from zinc.backends.plans import Plan, Ref
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.ops import OPS
from zinc.ops.cases import Case
from zinc.ops.elementwise import activate
from zinc.ops.values import ActivationFn, Value
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


def run(case: Case) -> tuple[Plan, np.ndarray]:
    backend = api.create("ref")
    plan = make_plan(case.graph, backend, max_tokens=case.n_tokens, max_outputs=case.n_tokens)
    for w in plan.weights:
        values = case.tensors[w.name]
        backend.upload(w, TensorData(GGMLType.F32, w.shape, values.view(np.uint8).reshape(-1)))
    cache = backend.allocate(plan.states, CacheLayout(16, (1,)))
    return plan, backend.prepare(plan, cache).step(case.step(16))


def views(plan: Plan) -> list[Ref]:
    return [x for launch in plan.launches for x in launch.inputs if isinstance(x, Ref) and x.first]


def test_a_view_reads_what_the_reference_copies() -> None:
    case = Case("views")
    g, wide, gate = case.graph, case.rows(96), case.rows(16)
    inner = g.columns(g.columns(wide, 32, 48), 16, 16)
    plan, got = run(case.returns(g.glu(gate, inner, activation=ActivationFn.GELU)))
    assert "columns" not in {launch.kernel for launch in plan.launches}
    ((view,), (width, stride)) = views(plan), (16, 4 * 96)
    assert (view.first, view.cols, view.stride) == (48, width, stride)

    table, gates = (case.tensors[name] for name in ("w0", "w1"))
    step = case.step(16)
    attrs = {"first": 48, "width": 16}
    (want,) = OPS["columns"].run(step, [table[step.ids]], attrs)
    np.testing.assert_array_equal(got, activate(ActivationFn.GELU, gates[step.ids], want, {}))


def test_the_base_lives_until_its_last_view_is_read() -> None:
    case = Case("alive")
    g, wide = case.graph, case.rows(64)
    first = g.columns(wide, 0, 32)
    x: Value = case.rows(32)
    for _ in range(4):  # values that would reuse the memory of the base if views did not keep it
        x = g.glu(x, g.rms_norm(x, None, eps=1e-6), activation=ActivationFn.GELU)
    plan, _ = run(case.returns(g.add(x, first)))
    wide_ref = next(launch.outputs[0] for launch in plan.launches if launch.kernel == "embed")
    end = wide_ref.offset + case.n_tokens * wide_ref.stride
    for launch in plan.launches[1:]:
        if launch.kernel in ("embed", "glu", "rms_norm"):
            out = launch.outputs[0]
            assert out.offset >= end or out.offset + case.n_tokens * out.stride <= wide_ref.offset


def test_an_op_in_place_does_not_overwrite_a_view() -> None:
    case = Case("in-place")
    g, wide = case.graph, case.rows(64)
    doubled = g.scale(g.columns(wide, 0, 32), 2.0)
    _, got = run(case.returns(g.add(doubled, g.columns(wide, 32, 32))))
    rows = case.tensors["w0"][case.step(16).ids]
    np.testing.assert_array_equal(got, 2 * rows[:, :32] + rows[:, 32:])
    plan = make_plan(case.graph, api.create("ref"), max_tokens=8, max_outputs=8)
    scale = next(launch for launch in plan.launches if launch.kernel == "scale")
    x = scale.input("x")
    assert isinstance(x, Ref)
    assert scale.outputs[0].offset != x.offset


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        (
            "gemma2",
            "rms_norm linear rope_store attention linear rms_norm "
            "rms_norm linear_glu linear rms_norm",
        ),
        (
            "gemma4e",
            "rms_norm linear rope_store attention linear rms_norm "
            "rms_norm linear_glu linear rms_norm linear glu linear rms_norm scale",
        ),
    ],
)
def test_a_norm_takes_a_residual(name: str, kernels: str) -> None:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        _, graph = load(file)
    plan = make_plan(graph, api.create("null"), max_tokens=8, max_outputs=8)
    got = [x.kernel for x in plan.launches if x.label == "blk.1" and x.kernel != "quantize"]
    assert " ".join(got) == kernels
