"""A model divided between a device and the CPU, chosen by memory or by the caller."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import on_backends
from present import computing

from zinc import LLM, DeviceMap, SamplingParams
from zinc.backends import api
from zinc.core.errors import MemoryLimitError, RequestError
from zinc.engine.load.device_map import BackendChoice, OpenModel, divide, split_backend
from zinc.engine.load.memory import RESERVE_SHARE, budgets, choose_cache
from zinc.engine.load.options import LoadOptions
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.ops.node import Node
from zinc.plan.device_map import DEVICE, HOST, choose
from zinc.plan.planner import make_plan

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
DEVICES = ["ref", *(name for name in computing() if name != "cpu")]
DEVICE_MAPS = {
    "qwen3": DeviceMap(gpu_layers=2),
    "qwen35moe": DeviceMap(cpu_moe=3),
}


def talk(llm: LLM) -> list[tuple[list[int], int]]:
    """Return the tokens and cached counts of two turns of a conversation and a branch of it."""
    rng = np.random.default_rng(5)

    def words(n: int) -> list[int]:
        return rng.integers(3, llm.spec.vocab, n).tolist()

    stem = words(70)
    first = llm.generate(stem, GREEDY)
    prompts = [[*stem, *first.token_ids, *words(8)], [*stem[:68], *words(10)]]
    answers = [first, *(llm.generate(prompt, GREEDY) for prompt in prompts)]
    llm.engine.pool.check()
    return [(answer.token_ids, answer.timings.cached_tokens) for answer in answers]


@pytest.mark.parametrize(
    ("family", "device"),
    on_backends(DEVICE_MAPS, DEVICES, everywhere=["qwen3"], always=["ref"]),
)
def test_prefixes_and_checkpoints_of_a_split_model(family: str, device: str) -> None:
    """Shared and copied blocks, and restored states, are on both devices."""
    answers = []
    for device_map in (DEVICE_MAPS[family], None):
        with LLM(
            FIXTURES / f"{family}.gguf",
            backend=device,
            device_map=device_map,
            kv_dtype="f16",
            batch_tokens=64,
            context=256,
        ) as llm:
            assert llm.backend.name == (f"{device}+cpu" if device_map else device)
            answers.append(talk(llm))
    split, whole = answers
    assert split == whole
    assert split[1][1] > 64  # tokens from the prefix cache


def test_a_split_cache_is_restored_from_disk(tmp_path: Path) -> None:
    cached = []
    for n in (2, 2, 3):  # the last one is divided differently and has its own files
        with LLM(
            FIXTURES / "qwen35moe.gguf",
            backend="ref",
            device_map=DeviceMap(gpu_layers=n),
            context=256,
            cache_dir=tmp_path,
        ) as llm:
            ids = list(range(3, 75))
            cached.append(llm.generate(ids, GREEDY).timings.cached_tokens)
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 64


def test_cache_views_of_a_split_model_write_back_to_each_device() -> None:
    with LLM(
        FIXTURES / "qwen35moe.gguf",
        backend="ref",
        device_map=DeviceMap(gpu_layers=3),
        context=256,
        prefix_cache=False,
    ) as llm:
        llm.generate(list(range(3, 80)), GREEDY)
        cache = llm.model.cache
        for views, put, at in (
            (lambda i: cache.block_views(0, i), lambda i, v: cache.put_block(0, i, v), 3),
            (cache.state_views, cache.put_state, 1),
        ):
            rng = np.random.default_rng(1)
            wanted = [rng.integers(0, 64, view.shape).astype(np.uint8) for view in views(at)]
            held = views(at)
            for view, new in zip(held, wanted, strict=True):
                view[...] = new
            put(at, held)
            found = views(at)
            assert found
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


# -- What is chosen -----------------------------------------------------------------------------


def layers(n: int, experts: bool) -> list[Node]:
    nodes = [Node("embed", (), (), label="embed")]
    for i in range(n):
        ops = ("attention", "moe_glu", "moe_down") if experts else ("attention", "linear")
        nodes += [Node(op, (), (), label=f"blk.{i}") for op in ops]
    return [*nodes, Node("linear", (), (), label="head")]


COSTS = {"embed": 4, "attention": 1, "linear": 3, "moe_glu": 20, "moe_down": 10}


def on_device(nodes: list[Node], device_map: DeviceMap, n_layers: int) -> int:
    if device_map.is_whole(n_layers):
        return sum(COSTS[node.op] for node in nodes)
    device_of = device_map.assign(n_layers)
    return sum(COSTS[node.op] for node in nodes if device_of(node) == DEVICE)


@pytest.mark.parametrize(
    ("experts", "memory", "chosen"),
    [
        (True, 131, DeviceMap()),  # all: 4 + 4 * 31 + 3
        (True, 130, DeviceMap(cpu_moe=1)),  # 97
        (True, 97, DeviceMap(cpu_moe=1)),
        (True, 96, DeviceMap(cpu_moe=2)),
        (True, 7, DeviceMap(cpu_moe=4)),
        (True, 6, DeviceMap(4, 4)),
        (True, 3, DeviceMap(1, 4)),
        (True, 2, DeviceMap(0, 4)),
        (False, 23, DeviceMap()),
        (False, 22, DeviceMap(4, 0)),
        (False, 14, DeviceMap(3, 0)),
        (False, 10, DeviceMap(2, 0)),
        (False, 0, DeviceMap(0, 0)),
    ],
)
def test_experts_leave_the_device_before_layers_do(
    experts: bool, memory: int, chosen: DeviceMap
) -> None:
    nodes = layers(4, experts)
    assert choose(nodes, 4, lambda p: on_device(nodes, p, 4) <= memory) == chosen


def test_gpu_layers_are_counted_as_in_llama_cpp() -> None:
    device_of = DeviceMap(gpu_layers=3).assign(4)
    found = {node.label: device_of(node) for node in layers(4, experts=False)}
    assert found == {
        "embed": HOST, "blk.0": HOST, "blk.1": HOST, "blk.2": DEVICE, "blk.3": DEVICE,
        "head": DEVICE,
    }  # fmt: skip


class SmallDevice:
    """The reference, with a memory of its own."""

    def __init__(self, available: int) -> None:
        self.ref, self.available = api.create("ref"), available

    def __getattr__(self, name: str) -> object:
        return getattr(self.ref, name)

    def available_bytes(self) -> int:
        return self.available


class SharingDevice(SmallDevice):
    """A device that shares `shared` bytes with the CPU, of which it may take `available`."""

    def __init__(self, available: int, shared: int) -> None:
        super().__init__(available)
        self.shared = shared

    def shared_bytes(self) -> int:
        return self.shared


OPTIONS = LoadOptions(context=64, kv_dtype="f16", batch_tokens=8)


def opened(name: str) -> OpenModel:
    file = GGUFFile.open(FIXTURES / f"{name}.gguf")
    spec, graph = load(file)
    return OpenModel(file, spec, (graph,))


@pytest.mark.parametrize(
    ("share", "note"),
    [
        (1.5, ""),
        (0.75, "the experts of the first {n} of 4 layers on the CPU"),
        (0.0, "all 4 layers on the CPU"),
    ],
)
def test_parts_that_do_not_fit_run_on_the_cpu_with_a_note(share: float, note: str) -> None:
    model = opened("qwen35moe")
    with model.file as file:
        weights = sum(tensor.n_bytes for tensor in file.tensors.values())
        device = SmallDevice(int(share * weights / (1 - RESERVE_SHARE)))
        host = api.create("cpu")
        choice = divide(device, lambda: host, model, OPTIONS)
    moved = 0 if choice.device_map is None else choice.device_map.cpu_moe
    assert choice.note.startswith(note.format(n=moved))
    assert ("(it does not fit on the device as a whole)" in choice.note) == bool(note)
    if not note:
        assert choice.backend is device
    elif share:
        assert choice.backend.name == "ref+cpu"
        assert 0 < moved < model.spec.n_layers
    else:
        assert choice.backend is host


@pytest.mark.parametrize(
    ("family", "device_map", "says"),
    [
        ("qwen3", DeviceMap(cpu_moe=1), "the model has no experts"),
        ("qwen35moe", DeviceMap(cpu_moe=-2), "cpu_moe cannot be -2.*Choose one from 0 to {n}"),
        ("qwen35moe", DeviceMap(gpu_layers=-1), "gpu_layers cannot be -1.*one from 0 to {n}"),
    ],
)
def test_device_maps_that_do_not_suit_the_model_are_refused(
    family: str, device_map: DeviceMap, says: str
) -> None:
    model = opened(family)
    n = model.spec.n_layers
    with model.file, pytest.raises(RequestError, match="(?i)" + says.format(n=n)):
        device_map.check(model.graphs[0].nodes, n)


def test_more_layers_than_the_model_has_means_all() -> None:
    model = opened("qwen35moe")
    with model.file:
        n, graph = model.spec.n_layers, model.graphs[0]
        for many, all_of_them in (
            (DeviceMap(gpu_layers=99), DeviceMap()),
            (DeviceMap(cpu_moe=99), DeviceMap(cpu_moe=n)),
        ):
            many.check(graph.nodes, n)
            assert many.describe(n) == all_of_them.describe(n)
            assert many.is_whole(n) == all_of_them.is_whole(n)
            device_of, same = many.assign(n), all_of_them.assign(n)
            assert [device_of(node) for node in graph.nodes] == [same(node) for node in graph.nodes]


def test_a_device_map_for_the_cpu_alone_is_refused() -> None:
    with pytest.raises(RequestError, match="Choose a device with `backend="):
        LLM(FIXTURES / "qwen3.gguf", backend="cpu", device_map=DeviceMap(gpu_layers=1))


def test_a_model_on_one_device_is_not_split() -> None:
    model = opened("qwen3")
    with model.file:
        device, host = api.create("ref"), api.create("cpu")

        def divided(n: int) -> BackendChoice:
            options = replace(OPTIONS, device_map=DeviceMap(gpu_layers=n))
            return divide(device, lambda: host, model, options)

        assert divided(model.spec.n_layers + 1).backend is device
        assert divided(0).backend is host


@pytest.mark.parametrize("room", [2.5, 1.1])
def test_parts_of_a_device_that_shares_the_hosts_memory_must_fit_there_together(
    room: float,
) -> None:
    """Each part alone fits in both cases, also on the host: that it has more memory is no help."""
    model = opened("qwen3")
    with model.file:
        weights = sum(tensor.n_bytes for tensor in model.file.tensors.values())
        device = SharingDevice(available=10 * weights, shared=int(room * weights))
        n_layers = model.spec.n_layers
        backend = split_backend(
            device, api.create("cpu"), model, DeviceMap(gpu_layers=n_layers - 1)
        )
        plan = make_plan(model.graphs[0], backend, max_tokens=8, max_outputs=8)
        on_device, together = budgets(model.file, [plan], backend)
        assert on_device.on_device
        assert on_device.available == 10 * weights
        assert together.name == "ref+cpu"
        assert together.available == device.shared
        assert together.weights_bytes >= weights
        assert 0 < on_device.weights_bytes < weights
        memories = [on_device, together]
        if room > 2:
            assert choose_cache(model.spec, memories, "f16", 64, 8).context == 64
        else:
            with pytest.raises(MemoryLimitError):
                choose_cache(model.spec, memories, "f16", 64, 8)
