"""Layers divided over several devices: the ranges that are chosen, and the logits of the model."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import numpy as np
import pytest
from effort import on_backends
from models.harness import FIXTURES, Runner, expected, fixture_names, relative_error
from plan.test_split import TOLERANCE, model, runner, split
from present import computing

from zinc.backends.plans import Segment, Transfer
from zinc.plan.layer_split import (
    DeviceRoom,
    LayerLoad,
    LayerSplit,
    divide_layers,
    even_split,
    layer_range,
)

# Dense; experts and sliding windows; a hybrid; latent attention; windows and a shared cache.
FAMILIES = ("qwen3", "gptoss", "qwen35moe", "deepseek2", "gemma4e")
EVERY_FAMILY = [
    pytest.param(name, marks=() if name in FAMILIES else pytest.mark.every)
    for name in fixture_names()
]


def slowest(loads: list[LayerLoad], rooms: list[DeviceRoom], ends: tuple[int, ...]) -> float:
    """Return the time of the slowest device; infinite if a range does not fit."""
    times = []
    for (first, last), room in zip(pairwise((0, *ends)), rooms, strict=True):
        part = loads[first:last]
        if sum(load.memory_bytes for load in part) > room.memory_bytes:
            return float("inf")
        times.append(sum(load.token_bytes for load in part) / room.speed)
    return max(times)


@pytest.mark.parametrize("seed", range(20))
def test_the_chosen_ranges_are_the_fastest_that_fit(seed: int) -> None:
    rng = random.Random(seed)
    n_layers, n_devices = rng.randint(3, 8), rng.randint(2, 3)
    loads = [LayerLoad(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(n_layers)]
    rooms = [DeviceRoom(rng.randint(5, 30), rng.choice([1.0, 2.0, 5.0])) for _ in range(n_devices)]
    joined = set(rng.sample(range(1, n_layers), rng.randint(0, n_layers - n_devices)))
    free = [end for end in range(1, n_layers) if end not in joined]
    best = min(
        slowest(loads, rooms, (*ends, n_layers)) for ends in combinations(free, n_devices - 1)
    )
    found = divide_layers(loads, rooms, joined)
    if found is None:
        assert best == float("inf")
    else:
        ends = tuple(last for _, last in found.ranges)
        assert slowest(loads, rooms, ends) == best
        assert not joined & set(ends)


def test_ranges_of_layers_are_described() -> None:
    assert even_split(7, 3) == LayerSplit((2, 2, 3))
    text = LayerSplit((1, 3)).describe(("vulkan:0", "cpu"))
    assert text == "layer 0 on vulkan:0, layers 1-3 on cpu"
    assert layer_range([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


@pytest.mark.parametrize("name", EVERY_FAMILY)
@pytest.mark.parametrize("n_devices", [2, 3])
def test_layers_on_cpu_places_give_the_bits_of_one(name: str, n_devices: int) -> None:
    ids, want = expected(name)
    n_layers = model(name)[0].n_layers
    layers = even_split(n_layers, min(n_devices, n_layers))
    divided = runner(name, ["cpu"] * len(layers.counts), layers.assign())
    got = divided.feed((0, ids))[0]
    assert relative_error(got, want) <= TOLERANCE
    # Conversions of received rows belong to a layer too, whose bytes they count for.
    assert all(launch.label for launch in divided.program.plan.launches)
    assert np.array_equal(got, Runner(FIXTURES / f"{name}.gguf", "cpu").feed((0, ids))[0])


@pytest.mark.parametrize(
    ("name", "device"),
    on_backends(
        fixture_names(),
        [each for each in computing() if each != "cpu"],
        (),
    ),
)
def test_layers_on_devices_give_the_logits_of_the_model(name: str, device: str) -> None:
    """Three devices, of which the CPU is the second; a prompt in chunks, then single tokens."""
    ids, want = expected(name)
    n_layers = model(name)[0].n_layers
    layers = even_split(n_layers, min(3, n_layers))
    divided = runner(name, (device, "cpu", device)[: len(layers.counts)], layers.assign())
    got = [divided.feed_in_chunks(ids[:-3], 16), divided.feed_in_chunks(ids[-3:], 1)]
    assert relative_error(np.concatenate(got), want) <= TOLERANCE


@pytest.mark.parametrize("name", ["qwen3", "qwen35moe"])
def test_devices_take_one_turn_and_hidden_rows_cross_once(name: str) -> None:
    spec, _ = model(name)
    _, plan = split(name, ("ref", "ref", "ref"), even_split(spec.n_layers, 3).assign())
    assert [x.device for x in plan.schedule if isinstance(x, Segment)] == [0, 1, 2]
    crossings = [x for x in plan.schedule if isinstance(x, Transfer)]
    assert [(x.source, x.target) for x in crossings] == [(0, 1), (1, 2)]
    assert {x.sent.cols for x in crossings} == {spec.hidden}
