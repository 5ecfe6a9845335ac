"""Fusion keeps results, and values that live at the same time do not overlap in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zinc.backends import api
from zinc.backends.api import CacheLayout, TensorData
from zinc.backends.plans import Plan, Ref
from zinc.core.errors import UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.formats.gguf_writer import GGUFWriter
from zinc.models import load
from zinc.ops.cases import Case
from zinc.ops.step import Step
from zinc.ops.values import ActivationFn, Dim, RowFormat
from zinc.plan.planner import make_plan
from zinc.quant.blocks import BLOCKS, GGMLType

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
NAMES = sorted(p.stem for p in FIXTURES.glob("*.gguf"))


def prompt_step(ids: np.ndarray, n_blocks: int) -> Step:
    n = len(ids)
    rows = np.arange(n, dtype=np.int32)
    return Step(
        ids=ids.astype(np.int32),
        positions=rows,
        sequence=np.zeros(n, np.int32),
        output_rows=rows,
        seq_start=np.array([0, n], np.int32),
        state_slot=np.zeros(1, np.int32),
        tables=(np.arange(n_blocks, dtype=np.int32)[None],),
    )


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_the_fused_plan_computes_what_the_unfused_one_does(name):
    file = GGUFFile.open(FIXTURES / f"{name}.gguf")
    _, graph = load(file)
    backend = api.create("ref")
    logits = []
    for fuse in (False, True):
        plan = make_plan(graph, backend, max_tokens=64, max_outputs=64, fuse=fuse)
        for w in plan.weights:
            t = file.tensors[w.name]
            backend.upload(w, TensorData(t.type, t.shape, t))
        cache = backend.allocate(plan.states, CacheLayout(64, (1,)))
        ids = np.load(FIXTURES / f"{name}.npz")["tokens"]
        logits.append(backend.prepare(plan, cache).step(prompt_step(ids, 1)))
    assert np.array_equal(logits[0], logits[1])


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_decoder_layer_is_seven_launches(name):
    _, graph = load(GGUFFile.open(FIXTURES / f"{name}.gguf"))
    plan = make_plan(graph, api.create("ref"), max_tokens=8, max_outputs=8)
    kernels = [launch.kernel for launch in plan.launches if launch.label == "blk.1"]
    norm, rope = "rms_norm", "rope_store"
    assert kernels == [norm, "linear", rope, "attention", "linear", norm, "linear_glu", "linear"]


def test_experts_that_read_rows_differently_are_refused() -> None:
    """The CPU reads rows for Q4_K in blocks of 256 and for Q8_0 in blocks of 32."""
    case = Case("mixed")
    g, x = case.graph, case.rows(256)
    order, starts = g.group_experts(g.route(case.rows(4), None, top_k=2, scoring=0), n_experts=4)
    gate, up = (case.experts(4, 256, 256, t) for t in (GGMLType.Q4_K, GGMLType.Q8_0))
    case.returns(g.moe_glu(x, order, starts, gate, up, activation=ActivationFn.SILU))
    with pytest.raises(UnsupportedError, match="cannot be multiplied together") as error:
        make_plan(case.graph, api.create("cpu"), max_tokens=8, max_outputs=8)
    assert "Q4_K weights read rows as q8_256 and Q8_0 weights as q8_32" in str(error.value)
    make_plan(case.graph, api.create("ref"), max_tokens=8, max_outputs=8)


def test_selected_rows_are_copied_in_the_format_that_is_read() -> None:
    case = Case("selected")
    g = case.graph
    x = g.select_rows(g.rms_norm(case.rows(64), None, eps=1e-6))
    case.returns(g.linear(x, case.matrix(32, 64, GGMLType.Q8_0)))
    plan = make_plan(case.graph, api.create("cpu"), max_tokens=8, max_outputs=8)
    stored = [(launch.kernel, launch.outputs[0].format) for launch in plan.launches]
    assert stored[1:3] == [("rms_norm", RowFormat.Q8_32), ("select_rows", RowFormat.Q8_32)]
    assert len(stored) == 4, "nothing is quantised by itself"


def overlapping(a: Ref, b: Ref, plan: Plan) -> bool:
    rows = {Dim.TOKENS: plan.max_tokens, Dim.OUTPUTS: plan.max_outputs}
    a_end = a.offset + rows[a.dim] * a.stride
    b_end = b.offset + rows[b.dim] * b.stride
    return a.offset < b_end and b.offset < a_end


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("backend", ["ref", "null"])
def test_values_that_live_together_do_not_share_bytes(name, backend):
    _, graph = load(GGUFFile.open(FIXTURES / f"{name}.gguf"))
    plan = make_plan(graph, api.create(backend), max_tokens=96, max_outputs=7)
    refs = {o.id: (i, o) for i, launch in enumerate(plan.launches) for o in launch.outputs}
    last = {plan.output.id: len(plan.launches)}
    for i, launch in enumerate(plan.launches):
        for x in launch.inputs:
            if isinstance(x, Ref):
                last[x.id] = max(last.get(x.id, 0), i)
    for i, launch in enumerate(plan.launches):
        live = [r for made, r in refs.values() if made < i <= last.get(r.id, made)]
        for out in launch.outputs:
            for other in live:
                if not overlapping(out, other, plan) or other.id == out.id:
                    continue
                # Only a donor that is not read later may share an output's address.
                assert last[other.id] == i, f"{launch.kernel} overwrites %{other.id}"
                assert (other.offset, other.stride) == (out.offset, out.stride)
    assert all(r.offset + r.stride <= plan.arena_bytes for _, r in refs.values())


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_same_model_always_gives_the_same_plan(name):
    hashes = set()
    for _ in range(2):
        _, graph = load(GGUFFile.open(FIXTURES / f"{name}.gguf"))
        hashes.add(make_plan(graph, api.create("null"), max_tokens=32, max_outputs=8).hash)
    assert len(hashes) == 1
    _, graph = load(GGUFFile.open(FIXTURES / f"{name}.gguf"))
    assert make_plan(graph, api.create("null"), max_tokens=64, max_outputs=8).hash not in hashes


@pytest.mark.parametrize("type", [GGMLType.F64, GGMLType.I8, GGMLType.Q8_1])
def test_an_embedding_without_a_kernel_is_refused_before_it_is_loaded(type, tmp_path):
    layout, path = BLOCKS[type], tmp_path / "model.gguf"
    with GGUFFile.open(FIXTURES / "llama.gguf") as file, GGUFWriter(path) as writer:
        for key, value in file.metadata.items():
            writer.add(key, value)
        for tensor in file.tensors.values():
            data, kind = tensor.read(), tensor.type
            if tensor.name == "token_embd.weight":
                n_blocks = tensor.n_elements // layout.block_size
                data, kind = np.zeros(n_blocks * layout.block_bytes, np.uint8), type
            writer.add_tensor(tensor.name, data, kind, tensor.shape)
    _, graph = load(GGUFFile.open(path))
    with pytest.raises(UnsupportedError, match=f"cannot run weights of type {type.name}"):
        make_plan(graph, api.create("cpu"), max_tokens=8, max_outputs=8)
