"""Division of a graph over devices: nodes run once, values are sent once, logits are equal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from models.harness import FIXTURES, MAX_TOKENS, Runner, expected, relative_error
from present import computing

from zinc.backends import api
from zinc.backends.plans import Segment, SplitPlan, Transfer
from zinc.backends.split import SplitBackend
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.models.parts.spec import ModelSpec
from zinc.ops.graph import Graph
from zinc.ops.node import Node
from zinc.plan.device_map import DEVICE, HOST, DeviceMap
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data

Division: TypeAlias = Callable[[Node], int] | tuple[float, ...]

TOLERANCE = 5e-3
# Dense; experts; a hybrid with a shared expert; layers that read another layer's cache.
FAMILIES = ("qwen3", "gptoss", "qwen35moe", "gemma4e")


@cache
def model(name: str) -> tuple[ModelSpec, Graph]:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return load(file)


def at_random(name: str, seed: int) -> Callable[[Node], int]:
    rng = random.Random(seed)
    devices = {id(node): rng.randrange(2) for node in model(name)[1].nodes}
    return lambda node: devices[id(node)]


def by(name: str, device_map: DeviceMap) -> Callable[[Node], int]:
    return device_map.assign(model(name)[0].n_layers)


def split(
    name: str, backends: Sequence[str], division: Division, **options: int
) -> tuple[SplitBackend, SplitPlan]:
    devices = [api.create(each, options={"instance": str(i)}) for i, each in enumerate(backends)]
    backend = SplitBackend(devices, division)
    sizes = {"max_tokens": MAX_TOKENS, "max_outputs": MAX_TOKENS, **options}
    plan = make_plan(model(name)[1], backend, **sizes)
    assert isinstance(plan, SplitPlan)
    return backend, plan


def runner(name: str, backends: Sequence[str], division: Division, n_sequences: int = 1) -> Runner:
    path: Path = FIXTURES / f"{name}.gguf"
    backend, plan = split(name, backends, division)
    backend.keep(plan)
    with GGUFFile.open(path) as file:
        for w in plan.weights:
            backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    return Runner(path, loaded=(backend, plan), n_sequences=n_sequences)


@pytest.mark.alike(3)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_any_device_map_gives_the_logits_of_the_model(name: str, seed: int) -> None:
    for backends in (("ref", "cpu"), ("cpu", "cpu")):
        ids, want = expected(name)
        got = runner(name, backends, at_random(name, seed)).feed((0, ids))[0]
        assert relative_error(got, want) <= TOLERANCE


@pytest.mark.parametrize("device", computing())
@pytest.mark.parametrize(
    ("name", "device_map"),
    [
        ("qwen3", DeviceMap(gpu_layers=2)),
        ("gptoss", DeviceMap(cpu_moe=1)),
        ("qwen35moe", DeviceMap(gpu_layers=3, cpu_moe=3)),
    ],
)
def test_chunks_and_decode_of_a_split_model(device: str, name: str, device_map: DeviceMap) -> None:
    ids, want = expected(name)
    split_runner = runner(name, (device, "cpu"), by(name, device_map))
    prompt, rest = ids[:-3], ids[-3:]
    got = [split_runner.feed_in_chunks(prompt, 16), split_runner.feed_in_chunks(rest, 1)]
    assert relative_error(np.concatenate(got), want) <= TOLERANCE


def test_a_split_of_the_cpu_gives_the_bits_of_the_cpu() -> None:
    ids, _ = expected("qwen35moe")
    whole = Runner(FIXTURES / "qwen35moe.gguf", "cpu").feed((0, ids))[0]
    device_of = by("qwen35moe", DeviceMap(gpu_layers=3, cpu_moe=2))
    assert np.array_equal(runner("qwen35moe", ("cpu", "cpu"), device_of).feed((0, ids))[0], whole)


@pytest.mark.parametrize("name", FAMILIES)
def test_nodes_run_once_and_values_cross_once(name: str) -> None:
    for seed in range(4):
        device_of = at_random(name, seed)
        backend, plan = split(name, ("ref", "ref"), device_of, max_tokens=8, max_outputs=8)
        unfused = make_plan(model(name)[1], backend, max_tokens=8, max_outputs=8, fuse=False)
        once = [x for x in unfused.launches if x.kernel != "rope_table"]
        local = ("columns", "rope_table")  # each device that reads them makes them
        assert len(once) == sum(n.op not in local for n in model(name)[1].nodes)
        crossings = [(t.sent.id, t.target) for t in plan.schedule if isinstance(t, Transfer)]
        assert len(set(crossings)) == len(crossings)
        for part_index, part in enumerate(plan.parts):
            ranges = [
                (s.first, s.last)
                for s in plan.schedule
                if isinstance(s, Segment) and s.device == part_index
            ]
            assert [i for a, b in ranges for i in range(a, b)] == list(range(len(part.launches)))
        states = [{s.name for s in part.states} for part in plan.parts]
        assert not states[0] & states[1]


@pytest.mark.parametrize("name", ["gptoss", "qwen35moe"])
def test_experts_on_the_cpu_take_one_turn_a_layer(name: str) -> None:
    spec, _ = model(name)
    _, plan = split(name, ("ref", "cpu"), by(name, DeviceMap(cpu_moe=spec.n_layers)))
    turns = [s.device for s in plan.schedule if isinstance(s, Segment)]
    assert turns == [HOST, *[DEVICE, HOST] * spec.n_layers, DEVICE]
    # The embedding; for each layer the normalised rows and router logits, and the sum that returns.
    assert sum(isinstance(t, Transfer) for t in plan.schedule) == 1 + 3 * spec.n_layers
    experts = {launch.kernel for launch in plan.parts[HOST].launches}
    assert experts == {"embed", "route", "group_experts", "moe_glu", "moe_down"}


def test_the_hash_depends_on_the_device_map() -> None:
    hashes = {
        split("gptoss", ("ref", "cpu"), by("gptoss", DeviceMap(cpu_moe=n)))[1].hash for n in (1, 2)
    }
    assert len(hashes) == 2
