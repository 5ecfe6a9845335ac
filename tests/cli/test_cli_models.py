"""`zinc inspect`, `plan`, `bench` and `verify`: their reports about models and machines."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.harness import rewrite, with_blocks
from present import computing

from zinc.backends import api
from zinc.backends.null import NullBackend
from zinc.backends.ref import RefBackend, RefProgram
from zinc.cli import bench_text
from zinc.cli.bench_steps import Bench
from zinc.cli.step_profile import Profile
from zinc.cli.steps import StepMaker
from zinc.cli.text import size
from zinc.engine.cache_layout import BLOCK_TOKENS, cache_layout, kv_bytes_per_token
from zinc.engine.load import memory as load_memory
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.load.memory import RESERVE_SHARE, budgets, choose_cache
from zinc.engine.load.model import LoadedModel
from zinc.engine.load.options import BATCH_TOKENS, LoadOptions
from zinc.engine.load.planned import PlannedModel
from zinc.engine.load.planning import plan_model
from zinc.engine.load.self_test import relative_error
from zinc.engine.step_cost import StepShape
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType
from zinc.testing.parity import MOST, SCALE_BLOCK, storage_error

# -- inspect ------------------------------------------------------------------------------------


def test_inspect_agrees_with_another_reader(zinc, fixture_model):
    found = json.loads(zinc("inspect", fixture_model, "--json").out)
    reader = gguf.GGUFReader(fixture_model)
    assert [t["name"] for t in found["tensors"]] == [t.name for t in reader.tensors]
    assert [t["bytes"] for t in found["tensors"]] == [int(t.n_bytes) for t in reader.tensors]
    assert [t["type"] for t in found["tensors"]] == [t.tensor_type.name for t in reader.tensors]
    assert [t["shape"] for t in found["tensors"]] == [
        t.shape.tolist()[::-1] for t in reader.tensors
    ]
    keys = [key for key in reader.fields if not key.startswith("GGUF.")]
    assert list(found["metadata"]) == keys
    assert found["metadata"]["general.architecture"] == "qwen3"
    assert found["parameters"] == sum(int(t.n_elements) for t in reader.tensors)
    assert found["bytes"] == fixture_model.stat().st_size


def test_inspect_abbreviates_long_arrays(zinc):
    result = zinc("inspect")
    assert result.status == 0
    assert "embedded zinc-demo-30m" in result.err
    assert re.search(
        r"tokenizer\.ggml\.tokens +\[8,192\] string: '!', '\"', '#', '\$', \.\.\.", result.out
    )
    assert max(map(len, result.out.splitlines())) < 160
    tokens = json.loads(zinc("inspect", "--json").out)["metadata"]["tokenizer.ggml.tokens"]
    assert tokens == {"array_of": "string", "count": 8192, "first": ["!", '"', "#", "$"]}


def test_inspect_says_what_a_run_would_take(zinc, fixture_model):
    memory = json.loads(zinc("inspect", fixture_model, "--json").out)["memory"]
    with GGUFFile.open(fixture_model) as file:
        layers, heads = file.int("qwen3.block_count"), file.int("qwen3.attention.head_count_kv")
        dims = file.int("qwen3.attention.key_length") + file.int("qwen3.attention.value_length")
        context = file.int("qwen3.context_length")
        used = sum(t.n_bytes for t in file.tensors.values())
    assert memory["kv_f16_bytes"] == layers * heads * dims * 2 * context
    assert memory["kv_q8_0_bytes"] == layers * heads * dims * 34 // 32 * context
    assert memory["weights_bytes"] == used


def test_inspect_begins_with_a_summary(zinc):
    with GGUFFile.open(EMBEDDED_MODEL) as file:
        spec, _ = load(file)
        n_bytes = sum(t.n_bytes for t in file.tensors.values())
        n_elements = sum(t.n_elements for t in file.tensors.values())
    lines = zinc("inspect").out.splitlines()
    found = {line[2:13].strip(): line[13:] for line in lines[1 : lines.index("")]}
    assert list(found) == ["name", "model", "weights", "context", "chat", "supported"]
    assert found["name"] == "zinc demo 30M"
    assert found["model"].startswith(f"qwen3, {n_elements / 1e6:.1f} M parameters, 8 layers of ")
    assert f"vocabulary of {spec.vocab:,}" in found["model"]
    assert found["weights"].startswith(f"{n_bytes / 1e6:.1f} MB, {8 * n_bytes / n_elements:.1f} b")
    assert "Q4_K" in found["weights"]
    assert found["context"] == f"{spec.context:,} tokens"
    assert found["chat"] == "chat template, reasoning, tool calls"
    assert found["supported"] == "yes"


def planned(path: Path, backend: api.Backend, context: int, sequences: int = 1) -> PlannedModel:
    options = LoadOptions(
        path, context=context, kv_dtype="f16", max_outputs=sequences, sequences=sequences
    )
    return plan_model(options, backend)


def loaded(path: Path, backend: api.Backend, context: int, sequences: int = 1) -> LoadedModel:
    return LoadedModel(planned(path, backend, context, sequences))


def test_the_summary_names_experts_and_a_missing_template(zinc, fixture_model):
    out = zinc("inspect", fixture_model.with_stem("qwen35moe")).out
    assert "4 experts of which 2 run" in out
    assert "no chat template: a base model" in out


def test_windows_are_counted_as_windows(zinc, fixture_model, tmp_path):
    """The report counts the bytes that are allocated for one context."""
    longer = {"gemma3.context_length": 1 << 16}
    path = rewrite(fixture_model.with_stem("gemma3"), tmp_path / "m.gguf", metadata=longer)
    memory = json.loads(zinc("inspect", path, "--json").out)["memory"]
    planned = json.loads(zinc("plan", path, "--json", "--backend", "ref", "--kv-dtype", "f16").out)
    assert planned["kv_bytes"] == memory["kv_f16_bytes"]
    with GGUFFile.open(path) as file:
        spec, graph = load(file)
        states = make_plan(graph, api.kernels("ref"), max_tokens=1, max_outputs=1).states
        layout = cache_layout(states, spec.context, "f16", 1, BATCH_TOKENS)
        cache = api.create("ref").allocate(states, layout)  # in float32
    assert memory["kv_f16_bytes"] == cache.n_bytes // 2
    assert 2 * memory["kv_f16_bytes"] < kv_bytes_per_token(states, "f16") * spec.context


def test_inspect_shows_a_file_that_cannot_run(zinc, tmp_path):
    path = tmp_path / "abacus.gguf"
    writer = gguf.GGUFWriter(path, "abacus")
    writer.add_string("general.name", "a\x1b[31mb\nc")
    writer.add_float32("abacus.scale", float("inf"))
    writer.add_tensor("beads", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = zinc("inspect", path)
    assert result.status == 0
    assert "beads" in result.out
    assert re.search(r"^  supported  no: .*'abacus'", result.out, re.MULTILINE)
    assert "'abacus'" in result.out
    assert "\x1b" not in result.out
    found = json.loads(zinc("inspect", path, "--json").out, parse_constant=pytest.fail)
    assert "abacus" in found["memory"]["error"]
    assert found["metadata"]["abacus.scale"] == "inf"


# -- plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "frequencies"), [(0, "none"), (4094, "none"), (4095, "yarn_4")])
def test_plan_has_the_frequencies_of_its_depth(zinc, fixture_model, depth, frequencies):
    options = ("--rope-scaling", "yarn", "--rope-scale", 4, "--backend", "ref", "--depth", depth)
    found = json.loads(zinc("plan", fixture_model, *options, "--tokens", 2, "--json").out)
    (table,) = (x for x in found["launches"] if x["kernel"] == "rope_table")
    assert table["inputs"][0]["constant"].endswith(f"_{frequencies}")
    assert found["context_tokens"] == 4 * 4096


def test_a_rope_factor_of_0_is_refused(zinc, fixture_model):
    result = zinc("plan", fixture_model, "--rope-scale", "0", "--backend", "ref")
    assert result.status == 1
    assert "a RoPE factor of 0 is not possible" in result.err


def test_plan_refuses_a_step_past_the_context(zinc, fixture_model):
    result = zinc("plan", fixture_model, "--context", 100, "--depth", 99, "--tokens", 2)
    assert result.status == 1
    assert "the context has 100 tokens" in result.err
    assert zinc("plan", fixture_model, "--context", 100, "--depth", 98, "--tokens", 2).status == 0


def test_an_impossible_rope_scaling_is_one_line(zinc, fixture_model):
    result = zinc("plan", fixture_model, "--rope-scaling", "yarn", "--backend", "ref")
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert "--rope-scale" in result.err


@pytest.mark.parametrize("name", ["ref", "null"])
def test_the_printed_plan_is_the_plan_that_runs(zinc, fixture_model, name):
    found = json.loads(zinc("plan", fixture_model, "--backend", name, "--json").out)
    with planned(fixture_model, api.create(name), 512) as made:
        plan = made.plans[0]
        n_weights = sum(made.file.tensors[w.tensor].n_bytes for w in plan.weights)
    assert found["hash"] == plan.hash
    assert [x["kernel"] for x in found["launches"]] == [x.kernel for x in plan.launches]
    assert found["arena_bytes"] == plan.arena_bytes
    assert found["weights_bytes"] == n_weights
    assert found["bytes"] == sum(x["bytes"] for x in found["launches"])
    # A decode step reads every weight once, except unused rows of the embedding.
    assert n_weights / 2 < found["bytes"] < 1.5 * n_weights
    assert found["launches"][0]["inputs"][0]["weight"] == "token_embd.weight"


def test_plan_counts_flops_as_two_a_weight_and_token(zinc, fixture_model):
    found = json.loads(zinc("plan", fixture_model, "--backend", "ref", "--json").out)
    with GGUFFile.open(fixture_model) as file:
        matrices = [t for t in file.tensors.values() if len(t.shape) == 2]
        tied = "output.weight" not in file.tensors
        weights = sum(t.n_elements for t in matrices if tied or t.name != "token_embd.weight")
    linear = sum(x["flops"] for x in found["launches"] if x["kernel"].startswith("linear"))
    assert linear == 2 * weights


def test_plan_as_text_and_as_a_graph(zinc, fixture_model):
    options = (fixture_model, "--backend", "ref", "--tokens", "64", "--depth", "100")
    text = zinc("plan", *options).out
    n = len(json.loads(zinc("plan", *options, "--json").out)["launches"])
    assert len(re.findall(r"^ *\d+  \S+ ", text, re.MULTILINE)) == n
    assert "a step of 64 tokens after 100 cached ones" in text
    graph = zinc("plan", *options, "--dot").out
    assert graph.startswith("digraph plan {")
    assert graph.endswith("}\n")
    nodes = set(re.findall(r"^  (n\d+) \[", graph, re.MULTILINE))
    edges = re.findall(r"^  (n\d+) -> (n\d+) ", graph, re.MULTILINE)
    assert len(nodes) == n
    assert all(int(a[1:]) < int(b[1:]) and {a, b} <= nodes for a, b in edges)


@pytest.mark.skipif("vulkan" not in computing(), reason="Vulkan does not run here")
def test_plan_and_bench_count_barriers_where_there_are_any(zinc, fixture_model):
    bench = ("--prefill", 8, "--decode", 2, "--reps", 1, "--profile", "--backend", "vulkan")
    out = zinc("bench", fixture_model, *bench).out
    assert re.search(r"a decode step: 1 submission, .* barriers between them \(.* us of host", out)
    measured = json.loads(zinc("bench", fixture_model, *bench, "--json").out)
    for row in measured["decode_phases"]:
        assert row["seconds"] > 0, row
    phases = {row["phase"] for row in measured["decode_phases"]}
    assert phases == {"attention", "dense", "head", "sampling"}
    assert measured["decode_submissions_per_step"] == measured["prefill_submissions_per_step"] == 1
    assert measured["decode_host_us_per_step"] > 0
    plan = ("plan", fixture_model, "--backend", "vulkan")
    found = json.loads(zinc(*plan, "--json").out)
    assert measured["decode_step"].items() <= found.items()
    with GGUFFile.open(fixture_model) as file:
        n_layers = file.metadata["qwen3.block_count"]
    assert found["barriers_a_layer"] == found["barriers"] / n_layers
    assert f"({found['barriers_a_layer']:.1f} a layer)" in zinc(*plan).out
    assert "barriers" not in zinc("plan", fixture_model, "--backend", "null").out


def test_plan_of_a_divided_model_shows_devices_and_transfers(zinc, fixture_model):
    plan = ("plan", fixture_model, "--backend", "ref", "--gpu-layers", 2, "--tokens", 3)
    result = zinc(*plan, "--json")
    found = json.loads(result.out)
    with GGUFFile.open(fixture_model) as file:
        n_layers = file.metadata["qwen3.block_count"]
        hidden = file.metadata["qwen3.embedding_length"]
        embedding_bytes = file.tensors["token_embd.weight"].n_bytes
    told = f"the last 1 of {n_layers} layers and the output on the device (as requested)"
    assert told in result.err
    assert found["backend"] == "ref+cpu"
    assert [part["backend"] for part in found["devices"]] == ["ref", "cpu"]
    for key in ("kv_bytes", "arena_bytes"):
        assert sum(part[key] for part in found["devices"]) == found[key]
    weights_bytes = sum(part["weights_bytes"] for part in found["devices"])
    assert weights_bytes == found["weights_bytes"]
    whole = json.loads(zinc("plan", fixture_model, "--backend", "ref", "--json").out)
    # Both devices hold the embedding, which is also the output matrix.
    assert weights_bytes == whole["weights_bytes"] + embedding_bytes
    assert sum(part["launches"] for part in found["devices"]) == len(found["launches"])
    stream = [t for t in found["transfers"] if t["bytes"] == 3 * hidden * 4]
    assert [(t["source"], t["target"]) for t in stream] == [("cpu", "ref")]
    assert found["launches"][stream[0]["before"]]["label"] == f"blk.{n_layers - 1}"
    text = zinc(*plan).out
    crossed = sum(t["bytes"] for t in found["transfers"])
    assert f"between them: {len(found['transfers'])} values per step, {size(crossed)}" in text


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_plan_notes_parts_that_do_not_fit_on_the_device(zinc, fixture_model, monkeypatch, share):
    plan = ("plan", fixture_model, "--backend", "ref", "--context", 64, "--json")
    whole = zinc(*plan)
    sizes = ("weights_bytes", "kv_bytes", "state_bytes", "arena_bytes")
    room = int(share * sum(json.loads(whole.out)[key] for key in sizes))
    available = int(room / (1 - RESERVE_SHARE))
    monkeypatch.setattr(RefBackend, "available_bytes", lambda _: available)
    result = zinc(*plan)
    device, host = json.loads(result.out)["devices"]
    assert "(it does not fit on the device as a whole)" in result.err
    assert "does not fit" not in whole.err
    assert 0 < sum(device[key] for key in sizes) <= room
    assert host["launches"] > 0


def available(monkeypatch, n_bytes: float) -> None:
    """Make exactly enough memory available to leave `n_bytes` for a model."""
    free = int(n_bytes / (1 - RESERVE_SHARE)) + 1
    monkeypatch.setattr(load_memory, "available_memory_bytes", lambda backend=None: free)


def test_plan_says_whether_the_model_fits(zinc, fixture_model, monkeypatch):
    plan = ("plan", fixture_model, "--backend", "ref", "--context")
    found = json.loads(zinc(*plan, 4096, "--json").out)
    needed = sum(found[key] for key in ("weights_bytes", "kv_bytes", "state_bytes", "arena_bytes"))
    assert found["memories"][0]["needed_bytes"] == needed
    for room, context in ((needed, 4096), (needed - 1, 4096 - BLOCK_TOKENS)):
        available(monkeypatch, room)
        result = zinc(*plan, 4096, "--json")
        found = json.loads(result.out)
        assert result.status == 0
        assert found["fits"] is (room == needed)
        assert found["fitting_context_tokens"] == context
        text = zinc(*plan, 4096).out
        said = "fits in memory: needs" if found["fits"] else "DOES NOT FIT in memory: needs"
        assert f"{said} {size(needed)}, {size(room)} are available" in text
        assert ("a context of 4,032 tokens fits instead of 4,096" in text) is not found["fits"]
        # A run agrees.
        with GGUFFile.open(fixture_model) as file:
            spec, graph = load(file)
            backend = api.create("ref")
            made = make_plan(graph, backend, max_tokens=512, max_outputs=1, samples=True)
            memories = budgets(file, [made], backend)
            chosen = choose_cache(spec, memories, "f16", None, made.max_tokens)
        assert chosen.context == context


def test_plan_refuses_a_context_that_a_run_refuses(zinc, fixture_model):
    result = zinc("plan", fixture_model, "--backend", "ref", "--context", 4_000_000)
    assert result.status == 1
    assert "a context of 4,000,000 tokens is not possible" in result.err
    assert "--context 4096" in result.err


def test_plan_of_a_model_whose_weights_do_not_fit(zinc, fixture_model, monkeypatch):
    available(monkeypatch, 1000)
    result = zinc("plan", fixture_model, "--backend", "ref")
    assert result.status == 0
    assert "DOES NOT FIT in memory: needs " in result.out
    assert "no context fits: use a smaller model or quantisation" in result.out


def test_verify_and_bench_run_a_divided_model(zinc, fixture_model):
    divided = (fixture_model, "--backend", "ref", "--gpu-layers", 3)
    checked = json.loads(zinc("verify", *divided, "--tokens", 8, "--json").out)
    assert checked["backend"] == "ref+cpu"
    assert checked["first_departure"] is None
    bench = zinc("bench", *divided, "--prefill", 4, "--decode", 2, "--reps", 1, "--json").out
    assert json.loads(bench)["decode_submissions_per_step"] == 2


def test_verify_reads_values_that_two_devices_make(zinc, fixture_model):
    """Each device makes the table of RoPE angles; only the first has it when its layers run."""
    divided = (fixture_model, "--device", "cpu,cpu", "--tokens", 8)
    checked = json.loads(zinc("verify", *divided, "--json").out)
    tables = [x["launch"] for x in checked["checks"] if x["kernel"] == "rope_table"]
    assert len(set(tables)) == 2
    assert checked["first_departure"] is None


def test_the_plan_of_several_devices(zinc, fixture_model):
    model = (fixture_model, "--device", "cpu,ref,cpu", "--shares", "1,1,2", "--context", 64)
    found = json.loads(zinc("plan", *model, "--json").out)
    assert [part["backend"] for part in found["devices"]] == ["cpu", "ref", "cpu #2"]
    layers = [part["layers"] for part in found["devices"]]
    assert all(layers)
    assert [x for part in layers for x in part] == list(range(sum(map(len, layers))))
    crossed = sum(transfer["bytes"] for transfer in found["transfers"])
    assert found["transfer_bytes_per_token"] == crossed > 0
    text = zinc("plan", *model).out
    assert "on cpu #2: layers " in text
    assert f"({size(crossed)} per token)" in text


def test_verify_and_plan_of_divided_tensors(zinc, fixture_model):
    divided = (fixture_model, "--device", "cpu,ref", "--split-mode", "tensor")
    checked = json.loads(zinc("verify", *divided, "--tokens", 8, "--json").out)
    assert checked["first_departure"] is None
    found = json.loads(zinc("plan", *divided, "--context", 64, "--json").out)
    assert len({tuple(part["layers"]) for part in found["devices"]}) == 1
    assert found["sums"]
    crossed = sum(each["bytes"] for each in (*found["transfers"], *found["sums"]))
    assert found["transfer_bytes_per_token"] == crossed
    text = zinc("plan", *divided, "--context", 64).out
    assert f"and {len(found['sums'])} sums per step, {size(crossed)}" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--backend", "ref", "--cpu-moe", 1), "the model has no experts"),
        (("--backend", "cpu", "--gpu-layers", 1), "runs on the CPU"),
        (("--device", "cpu,nope"), "there is no device 'nope'"),
        (("--device", "cpu,cpu", "--shares", "1,2,3"), "there are 2 devices"),
    ],
)
def test_an_impossible_device_map_is_one_error(zinc, fixture_model, options, says):
    result = zinc("run", "-m", fixture_model, "Hello", *options)
    assert result.status == 1
    assert says in result.err
    assert result.err.count("\n") == 1


# -- bench --------------------------------------------------------------------------------------

KEYS = ("model", "backend", "threads", "level", "cpu_model", "depth", "kv_dtype", "reps")


def test_bench_prints_one_json_object(zinc, fixture_model, backend):
    result = zinc(
        "bench", fixture_model, "--prefill", "40", "--decode", "6", "--depth", "10", "--reps", "3",
        "--backend", backend, "--json", "--profile",
    )  # fmt: skip
    assert result.status == 0
    found = json.loads(result.out)
    assert set(KEYS) <= set(found)
    for name in ("prefill", "decode"):
        reps = found[f"{name}_reps_tokens_per_s"]
        assert len(reps) == 3
        assert found[f"{name}_tokens_per_s"] == sorted(reps)[1] > 0
        assert found[f"{name}_gb_per_s"] > 0
        profile = found[f"{name}_profile"]
        assert sum(kind["percent"] for kind in profile) == pytest.approx(100)
        phases = found[f"{name}_phases"]
        drawing = {"sampling"} if api.kernels(backend).supports("sample") else set()
        assert {row["phase"] for row in phases} == {"attention", "dense", "head"} | drawing
        for column in ("launches", "bytes", "seconds"):
            whole = sum(kind[column] for kind in profile)
            assert sum(row[column] for row in phases) == pytest.approx(whole)
        assert found[f"{name}_phases_percent_of_step"] > 0
    with planned(fixture_model, api.create(backend), 16) as made:
        n_launches = len(made.plans[0].launches)
    assert sum(kind["launches"] for kind in found["decode_profile"]) == n_launches
    if backend == "cpu":
        assert found["decode_percent_of_bandwidth"] > 0
        assert found["bandwidth_gb_per_s"] > 0
        assert found["int8_peak_gops"] > 0


def test_bench_without_json_prints_a_table(zinc, fixture_model):
    result = zinc("bench", fixture_model, "--prefill", "8", "--decode", "0", "--backend", "ref")
    assert re.search(r"^prefill 8 +[\d,.]+ ", result.out, re.MULTILINE)
    assert "\ndecode" not in result.out


def test_bench_explains_values_above_a_limit():
    def row(percent: float) -> dict[str, object]:
        return {
            "phase": "head", "kernel": "linear", "launches": 1, "seconds": 1e-3, "percent": 100.0,
            "bytes": 1000, "percent_of_bandwidth": percent,
        }  # fmt: skip

    def text(percent: float, step_s: float) -> str:
        measured = Profile(StepShape(1, 1, 0), [], [1e-3], step_s)
        return bench_text.profile(measured, [row(percent)], [row(percent)])

    above, below = text(412, 2e-3), text(99, 0.5e-3)
    assert re.search(r"412%\*$", above, re.MULTILINE)
    assert above.splitlines()[-1] == bench_text.ABOVE
    assert "50% of the 2.000 ms it takes" in above
    assert "*" not in below
    assert "1.000 ms in launches, 0.500 ms when they are not timed one by one" in below
    assert not re.search(r"\b[1-9]\d\d+%", below.replace("100.0%", ""))


def test_bench_measures_prefill_and_decode_apart(fixture_model):
    with loaded(fixture_model, NullBackend(), 700) as model:
        prefill, decode = Bench(model).measure(600, 3, 5, reps=2)
        program = model.program
    most = BATCH_TOKENS
    one_round = [(most, 0, 0), (600 - most, most, 1), (1, 5, 1), (1, 6, 1), (1, 7, 1)]
    steps = [
        (step.n_tokens, int(step.positions[0]), len(step.output_rows)) for step in program.steps
    ]
    # The fill to the depth, a warm-up round, and two measured rounds.
    assert steps == [(5, 0, 1), *one_round * 3]
    assert len(prefill.seconds) == len(decode.seconds) == 2
    assert (prefill.tokens, decode.tokens) == (600, 3)
    assert prefill.tokens_per_s == [600 / s for s in prefill.seconds]


def test_bench_decodes_streams_together(fixture_model):
    with loaded(fixture_model, NullBackend(), 70, sequences=3) as model:
        _, decode = Bench(model).measure(0, 2, 65, reps=1)
        program = model.program
    fills, steps = program.steps[:3], program.steps[3:]
    assert [step.tables[0].tolist() for step in fills] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    assert [step.positions.tolist() for step in steps] == [[65] * 3, [66] * 3] * 2
    for step in steps:
        assert step.tables[0].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert step.output_rows.tolist() == step.sequence.tolist() == [0, 1, 2]
    assert decode.tokens == 6


# -- verify -------------------------------------------------------------------------------------


class BrokenProgram(RefProgram):
    """A program that computes one launch wrongly: off by one percent, or NaN."""

    def __init__(self, inner: RefProgram, index: int, factor: float) -> None:
        super().__init__(inner.plan, inner._weights, inner._cache)
        self._index, self._factor = index, factor

    def run(self, step, first, last) -> None:
        for i in range(first, last):
            super().run(step, i, i + 1)
            if i == self._index:
                ref = self.plan.launches[i].outputs[0]
                self._values[ref.id] = self._values[ref.id] * np.float32(self._factor)


class BrokenBackend(RefBackend):
    def __init__(self, index: int, factor: float) -> None:
        super().__init__()
        self._index, self._factor = index, factor

    def prepare(self, plan, cache):
        return BrokenProgram(super().prepare(plan, cache), self._index, self._factor)


def test_verify_agrees_with_the_backend(zinc, fixture_model, backend):
    for kv_dtype in ("f16", "q8_0"):
        result = zinc(
            "verify", fixture_model, "--backend", backend, "--kv-dtype", kv_dtype, "--json"
        )
        found = json.loads(result.out)
        assert found["first_departure"] is None, found["first_departure"]
        assert result.status == 0
        assert found["argmax_agrees"] >= found["logits_rows"] - 1


@pytest.mark.skipif("vulkan" not in computing(), reason="Vulkan does not run here")
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("gptoss", "decode at 256"),
        ("qwen3", "decode at 32"),
        pytest.param("gemma4e", "decode at 32", marks=pytest.mark.every),
    ],
)
def test_verify_reaches_the_kernel_of_decode(zinc, name, step):
    """Both programs get aligned inputs at every depth, also for a model with shared caches.

    With attention sinks, the kernel runs only after many keys.
    """
    path = Path(__file__).parent.parent / "data" / "fixtures" / f"{name}.gguf"
    found = json.loads(zinc("verify", "-m", path, "--backend", "vulkan", "--json").out)
    assert found["first_departure"] is None
    checked = {(check["step"], check["kernel"]) for check in found["checks"]}
    assert (step, "rope_attention") in checked


def test_verify_allows_for_rows_that_a_kernel_rounds_itself(zinc, backend, tmp_path):
    """The rows in front of the per-head matrices of latent attention."""
    path, _ = with_blocks("deepseek2", tmp_path, "attn_v_b.weight", GGMLType.Q8_0)
    result = zinc("verify", path, "--backend", backend, "--json")
    assert result.status == 0, json.loads(result.out)["first_departure"]


def test_verify_agrees_on_the_embedded_model(zinc, backend):
    result = zinc("verify", "--backend", backend, "--tokens", "12", "-v")
    assert result.status == 0, result.out
    assert re.search(r"all \d+ launches agree", result.out)
    assert re.search(r"^blk\.7 ", result.out, re.MULTILINE)


@pytest.mark.alike(3)
@pytest.mark.parametrize("factor", [1.01, float("nan")])
@pytest.mark.parametrize("kernel", ["linear", "attention", "linear_glu"])
def test_verify_names_the_launch_that_departs(zinc, monkeypatch, fixture_model, kernel, factor):
    with planned(fixture_model, RefBackend(), 64) as made:
        launches = made.plans[0].launches
    index = [i for i, x in enumerate(launches) if x.kernel == kernel and x.label == "blk.1"][-1]
    backends = {"ref": RefBackend, "cpu": partial(BrokenBackend, index, factor)}
    monkeypatch.setattr(api, "create", lambda name, *_: backends[name]())
    result = zinc("verify", fixture_model, "--backend", "cpu")
    assert result.status == 1
    expected = rf"launch {index} \({kernel} of blk\.1\) differs in the prefill: relative error "
    assert re.search(expected + ("1.00e-02" if factor == 1.01 else "inf"), result.out)
    found = json.loads(
        zinc("verify", fixture_model, "--backend", "cpu", "--json").out, parse_constant=pytest.fail
    )
    assert found["first_departure"]["launch"] == index
    departed = [c["launch"] for c in found["checks"] if c["departs"]]
    if factor == 1.01:
        assert set(departed) == {index}, "what follows gets the backend's inputs and must agree"


@given(
    st.sampled_from(sorted(MOST)),
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(0, 2**32 - 1),
)
def test_rounding_to_integers_stays_within_what_is_allowed(format, n_rows, n_blocks, seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_rows, 32 * n_blocks)) * 10 ** rng.uniform(-4, 4, 32 * n_blocks)
    rows = rows.astype(np.float32)
    found = np.empty_like(rows)
    for r in range(n_rows):
        for at in range(0, rows.shape[1], SCALE_BLOCK[format]):
            block = rows[r, at : at + SCALE_BLOCK[format]]
            d = np.abs(block).max() / MOST[format]
            found[r, at : at + len(block)] = np.round(block / d) * d
    allowed = storage_error(rows, format)
    error = relative_error(found, rows)
    assert error <= allowed
    # All values but the largest may be smaller than a step, so no smaller bound holds.
    assert allowed <= 1.01 / (2 * MOST[format]) * SCALE_BLOCK[format] ** 0.5
    assert storage_error(rows, "f32") == 0


def test_verify_runs_the_plan_of_the_backend(fixture_model):
    """The reference runs a plan with 8-bit rows as well as its own."""
    with planned(fixture_model, NullBackend(), 64) as made:
        reference = LoadedModel(made.on(RefBackend()))
        own = loaded(fixture_model, RefBackend(), 64)
        step = StepMaker(own).step(range(1, 9), 0, outputs=1)
        assert np.array_equal(reference.program.step(step), own.program.step(step))
        assert replace(reference.plan, arena_bytes=0) != own.plan


def test_the_embedded_model_is_the_default(zinc):
    assert json.loads(zinc("inspect", "--json").out)["path"] == str(EMBEDDED_MODEL)
