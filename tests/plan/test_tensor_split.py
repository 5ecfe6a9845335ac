"""Tensors divided over several devices: the parts, the logits of the model, and the choice."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from effort import on_backends
from models.harness import Runner, expected, fixture_names, relative_error, with_blocks
from plan.test_split import TOLERANCE, model, runner, split
from present import computing

from zinc.backends import api
from zinc.backends.plans import AllReduce, Plan, Segment, SplitPlan, Transfer
from zinc.backends.ref import RefBackend
from zinc.backends.split import SplitBackend
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.ops.values import Box, KVState, RecurrentState
from zinc.plan.planner import make_plan
from zinc.plan.split_choice import split_cost
from zinc.plan.weights import BoxReader, tensor_data
from zinc.quant.blocks import GGMLType, row_bytes

# Dense; experts, biases and sinks; windows and a shared cache; latent attention; a hybrid.
FAMILIES = ("qwen3", "gptoss", "gemma4e", "deepseek2", "qwen35moe")
EVERY_FAMILY = [
    pytest.param(name, marks=() if name in FAMILIES else pytest.mark.every)
    for name in fixture_names()
]


@pytest.mark.alike(5)
@pytest.mark.parametrize("name", EVERY_FAMILY)
@pytest.mark.parametrize("shares", [(1.0, 1.0), (2.0, 1.0, 1.0)])
def test_tensors_on_cpu_places_give_the_logits_of_the_model(
    name: str, shares: tuple[float, ...]
) -> None:
    ids, want = expected(name)
    divided = runner(name, ["cpu"] * len(shares), shares)
    got = [divided.feed_in_chunks(ids[:-3], 16), divided.feed_in_chunks(ids[-3:], 1)]
    assert relative_error(np.concatenate(got), want) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "device"),
    on_backends(
        fixture_names(),
        [each for each in computing() if each != "cpu"],
        ("gptoss",),
    ),
)
def test_tensors_on_devices_give_the_logits_of_the_model(name: str, device: str) -> None:
    """Three devices, of which the CPU is the second, so that one chooses experts for all."""
    ids, want = expected(name)
    divided = runner(name, (device, "cpu", device), (1.0, 1.0, 1.0))
    got = [divided.feed_in_chunks(ids[:-3], 16), divided.feed_in_chunks(ids[-3:], 1)]
    assert relative_error(np.concatenate(got), want) <= TOLERANCE


@pytest.mark.parametrize("backends", [("ref", "cpu"), ("cpu", "ref")])
def test_a_chunk_without_outputs_needs_no_logits(backends: tuple[str, str]) -> None:
    ids, want = expected("qwen3")
    divided = runner("qwen3", backends, (1.0, 1.0))
    assert divided.feed_for([], (0, ids[:9])).shape == (0, want.shape[1])
    assert relative_error(divided.feed((0, ids[9:]))[0], want[9:]) <= TOLERANCE


@pytest.mark.parametrize(
    "type", [GGMLType.Q8_0, pytest.param(GGMLType.Q4_0, marks=pytest.mark.every)]
)
def test_columns_are_divided_at_blocks(type: GGMLType, tmp_path: Path) -> None:
    """Five blocks of 32 columns on three devices."""
    path, plain = with_blocks("qwen3", tmp_path, "ffn_down.weight", type)
    backend = SplitBackend([api.create("ref") for _ in range(3)], (1.0, 1.0, 1.0))
    with GGUFFile.open(path) as file:
        plan = make_plan(load(file)[1], backend, max_tokens=96, max_outputs=96)
        assert isinstance(plan, SplitPlan)
        backend.keep(plan)
        for w in plan.weights:
            backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    down = [boxes(part)["blk.0.ffn_down.weight"][0].cols for part in plan.parts]
    assert down == [(range(64),), (range(64, 96),), (range(96, 160),)]
    ids, _ = expected("qwen3")
    got = Runner(path, loaded=(backend, plan)).feed((0, ids))[0]
    assert relative_error(got, Runner(plain, "ref").feed((0, ids))[0]) < 1e-5


def boxes(plan: Plan) -> dict[str, list[Box]]:
    """Return the parts of tensors that a plan reads, by tensor."""
    found: dict[str, list[Box]] = defaultdict(list)
    for weight in plan.weights:
        if weight.box is not None:
            found[weight.tensor].append(weight.box)
    return found


@pytest.mark.parametrize("n_devices", [2, 3])
def test_devices_share_the_products_and_the_cache_of_a_dense_model(n_devices: int) -> None:
    """Parts of a tensor cover it once. Two KV heads on three devices leave one without."""
    spec, graph = model("llama")
    _, plan = split("llama", ["ref"] * n_devices, (1.0,) * n_devices)
    parts: dict[str, list[Box]] = defaultdict(list)
    for part in plan.parts:
        for tensor, found in boxes(part).items():
            parts[tensor] += found
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    wanted = {f"blk.{i}.{name}.weight" for i in range(spec.n_layers) for name in names}
    assert parts.keys() == {*wanted, "output.weight"}
    for found in parts.values():
        covered = np.zeros(found[0].shape, int)
        for box in found:
            covered[np.ix_(box.rows, [i for each in box.cols for i in each])] += 1
        assert (covered == 1).all()
    whole = make_plan(graph, api.create("ref"), max_tokens=1, max_outputs=1)
    assert kv_heads(whole) == sum(kv_heads(part) for part in plan.parts)
    assert sorted(kv_heads(part) // spec.n_layers for part in plan.parts) == [0, 1, 1][-n_devices:]


def kv_heads(plan: Plan) -> int:
    """Return the KV heads of all layers."""
    return sum(state.n_heads for state in plan.states if isinstance(state, KVState))


@pytest.mark.parametrize(
    "name", ["qwen35", "qwen3next", "mamba", "mamba2", "lfm2", "kimilinear", "bailingmoe3"]
)
def test_devices_share_the_recurrent_states(name: str) -> None:
    """Value heads of a key head are neighbours in qwen3next, and n_k_heads apart in qwen35."""
    _, plan = split(name, ("ref", "ref"), (1.0, 1.0))
    whole = make_plan(model(name)[1], api.create("ref"), max_tokens=1, max_outputs=1)
    found = [state_floats(part) for part in plan.parts]
    assert found[0] == found[1] == state_floats(whole) // 2 > 0


def state_floats(plan: Plan) -> int:
    """Return the floats of recurrent state of all layers."""
    return sum(state.floats for state in plan.states if isinstance(state, RecurrentState))


def test_hidden_rows_are_added_up_twice_a_layer_while_both_devices_work() -> None:
    spec, _ = model("llama")
    _, plan = split("llama", ("ref", "ref"), (1.0, 1.0))
    crossings = [x for x in plan.schedule if isinstance(x, Transfer)]
    assert [(x.source, x.target, x.sent.cols) for x in crossings] == [
        (0, 1, spec.hidden),  # the embedding
        (1, 0, spec.vocab // 2),  # logits
    ]
    first = plan.schedule.index(crossings[0])
    found = plan.schedule[first + 1 : plan.schedule.index(crossings[1])]
    runs = [[type(x) for x in found[i : i + 3]] for i in range(0, len(found), 3)]
    assert runs[:-1] == [[Segment, Segment, AllReduce]] * (2 * spec.n_layers)
    assert runs[-1] == [Segment, Segment]


@pytest.mark.parametrize("name", ["phi2", "falcon", "gptneox"])
def test_parallel_attention_and_feed_forward_are_added_up_together(name: str) -> None:
    spec, _ = model(name)
    _, plan = split(name, ("ref", "ref"), (1.0, 1.0))
    assert sum(isinstance(x, AllReduce) for x in plan.schedule) == spec.n_layers


@pytest.mark.parametrize(("cards", "n_sent"), [(("A", "A"), 0), (("A", "B"), 1)])
def test_cards_that_differ_do_not_each_choose_experts(cards: tuple[str, ...], n_sent: int) -> None:
    """Near ties could fall differently; the first device sends its choice."""
    spec, graph = model("qwen3moe")
    devices = [RefCard(f"vulkan:{i}", card) for i, card in enumerate(cards)]
    backend = SplitBackend(devices, (1.0, 1.0), [each.selector for each in devices])
    plan = make_plan(graph, backend, max_tokens=8, max_outputs=8)
    assert isinstance(plan, SplitPlan)
    routes = {x.outputs[0].id for x in plan.launches if x.kernel == "route"}
    sent = [x for x in plan.schedule if isinstance(x, Transfer) and x.sent.id in routes]
    assert len(sent) == n_sent * spec.n_layers
    assert len(routes) == (2 - n_sent) * spec.n_layers


class RefCard(RefBackend):
    """The reference as a card."""

    def __init__(self, selector: str, card: str) -> None:
        super().__init__()
        self.selector, self.card = selector, card

    def describe(self) -> str:
        return f"{self.selector} {self.card}"


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_a_matrix_is_read_from_any_byte(seed: int) -> None:
    rng = random.Random(seed)
    type = rng.choice([GGMLType.F32, GGMLType.F16, GGMLType.Q8_0])
    planes, n_rows, n_blocks = rng.randint(1, 3), rng.randint(2, 9), rng.randint(2, 5)
    size = row_bytes(type, 32)
    stored = np.random.default_rng(seed).integers(
        0, 256, (planes, n_rows, n_blocks * size), np.uint8
    )
    kept, rows = (sorted(rng.sample(range(n + 1), 2)) for n in (planes, n_rows))
    ends = sorted(rng.sample(range(n_blocks + 1), 2 * rng.randint(1, (n_blocks + 1) // 2)))
    cols = [range(32 * a, 32 * b) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    columns = [i // 32 * size + at for each in cols for i in each[::32] for at in range(size)]
    wanted = stored[slice(*kept), slice(*rows), columns].reshape(-1)
    shape = (planes, n_rows, 32 * n_blocks)
    box = Box(range(*kept), range(*rows), tuple(cols), shape)
    reader = BoxReader(Stored(stored.reshape(-1)), type, box)
    assert reader.n_bytes == len(wanted)
    start, end = sorted(rng.sample(range(len(wanted) + 1), 2))
    target = np.empty(end - start, np.uint8)
    reader.read_into(target, start)
    assert np.array_equal(target, wanted[start:end])


class Stored:
    """Bytes as a `ByteReader`."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.data, self.n_bytes = data, data.nbytes

    def read_into(self, target: npt.NDArray[np.uint8], start: int = 0) -> None:
        target[:] = self.data[start : start + target.nbytes]


def test_the_faster_division_follows_from_bandwidth_and_link() -> None:
    layer, tensor, rates = [6, 6], [7, 6], [2.0, 1.0]
    cost = split_cost(layer, tensor, rates, n_all_reduces=4, all_reduce_s=0.25)
    assert (cost.layer_s, cost.tensor_s) == (9.25, 7.0)
    assert cost.tensor_is_faster
    assert not split_cost(layer, tensor, rates, n_all_reduces=4, all_reduce_s=2).tensor_is_faster
