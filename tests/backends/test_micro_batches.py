"""Steps in micro-batches: the same rows as whole steps, on devices that work at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine.test_device_map import GREEDY
from models.harness import ENCODERS, FIXTURES, Runner, expected, relative_error
from plan.test_layer_split import EVERY_FAMILY
from plan.test_split import TOLERANCE, model, runner
from present import computing

from zinc import LLM
from zinc.backends import api, micro_batches
from zinc.backends.api import FinishedStep
from zinc.backends.capabilities import BackendKind
from zinc.backends.micro_batches import Pipeline, can_overlap
from zinc.backends.plans import NO_OUTPUT, Plan, Ref, Segment, SplitPlan, Transfer
from zinc.backends.split import SplitBackend
from zinc.core.errors import DeviceError
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.ops.step import Step
from zinc.ops.values import Dim, FloatArray, RowFormat
from zinc.plan.layer_split import even_split
from zinc.plan.planner import make_plan


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make micro-batches small; return the list to which the number of each step is appended."""
    monkeypatch.setattr(micro_batches, "MICRO_BATCH_TOKENS", dict.fromkeys(BackendKind, 8))
    monkeypatch.setattr(micro_batches, "LEAST_TOKENS", 3)
    counts: list[int] = []
    run = Pipeline.run

    def counted(self: Pipeline, steps: Any, logits: bool) -> list[FinishedStep]:
        counts.append(len(steps))
        return run(self, steps, logits)

    monkeypatch.setattr(Pipeline, "run", counted)
    return counts


def on(name: str, devices: list[str], n_sequences: int = 1) -> Runner:
    layers = even_split(model(name)[0].n_layers, len(devices))
    return runner(name, devices, layers.assign(), n_sequences=n_sequences)


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_micro_batches_on_cpu_places_give_the_bits_of_one(name: str, small: list[int]) -> None:
    ids, _ = expected(name)
    n = min(3, model(name)[0].n_layers)
    parts = [(0, ids[:29]), (1, ids[:2]), (2, ids[3:21])]
    divided = on(name, ["cpu"] * n, 3)
    got = divided.feed(*parts)
    whole = Runner(FIXTURES / f"{name}.gguf", "cpu", n_sequences=3).feed(*parts)
    assert all(np.array_equal(a, b) for a, b in zip(got, whole, strict=True))
    turns = [x for x in divided.program.plan.schedule if isinstance(x, Segment)]
    assert (small != []) == (len(turns) == n > 1)
    assert all(count >= 4 for count in small)


@pytest.mark.parametrize("device", [name for name in computing() if name != "cpu"])
def test_micro_batches_on_devices(device: str, small: list[int]) -> None:
    ids, want = expected("qwen35moe")
    got = on("qwen35moe", [device, "cpu", device]).feed((0, ids))[0]
    assert relative_error(got, want) <= TOLERANCE
    assert small == [len(ids) // 8]


def test_micro_batches_of_an_engine(small: list[int]) -> None:
    """Drafts that are rolled back run in whole steps, prompts in parts."""
    texts = []
    for device in ("cpu,cpu", ""):
        with LLM(
            FIXTURES / "qwen35moe.gguf",
            backend="cpu",
            options={"device": device} if device else {},
            speculate="suffix",
            context=256,
            batch_tokens=64,
        ) as llm:
            answer = llm.generate([5, 6, 7, 8, 9] * 20, GREEDY, max_tokens=24)
            texts.append(answer.token_ids)
    assert texts[0] == texts[1]
    assert small


def test_micro_batches_use_the_adapters_of_their_sequences(small: list[int]) -> None:
    ids = np.load(FIXTURES / "granite.npz")["tokens"].tolist()
    logits = []
    for device in ("cpu,cpu", ""):
        with LLM(
            FIXTURES / "granite.gguf",
            backend="cpu",
            options={"device": device} if device else {},
            lora=FIXTURES.parent / "adapters" / "granite.gguf",
        ) as llm:
            logits.append(llm.logits(ids))
    assert np.array_equal(*logits)
    assert small


@pytest.mark.parametrize("seed", range(10))
def test_parts_keep_every_row(seed: int, small: list[int]) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, rng.integers(1, 6))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    n = int(starts[-1])
    step = Step(
        ids=np.arange(n, dtype=np.int32),
        positions=np.concatenate([np.arange(k) for k in lengths]).astype(np.int32),
        sequence=np.repeat(np.arange(len(lengths)), lengths).astype(np.int32),
        output_rows=np.sort(rng.choice(n, rng.integers(0, n), replace=False)).astype(np.int32),
        seq_start=starts,
        state_slot=rng.permutation(len(lengths)).astype(np.int32),
        tables=(rng.integers(0, 99, (len(lengths), 3)).astype(np.int32),),
    )
    parts = micro_batches.micro_batches(step, 8)
    assert np.array_equal(np.concatenate([part.ids for part in parts]), step.ids)
    assert np.array_equal(np.concatenate([part.positions for part in parts]), step.positions)
    outputs = np.concatenate([part.ids[part.output_rows] for part in parts])
    assert np.array_equal(outputs, step.output_rows)
    for part in parts:
        assert part.seq_start[0] == 0
        assert part.seq_start[-1] == part.n_tokens > 0
        assert part.n_sequences == len(part.state_slot) == len(part.tables[0])
        for i in range(part.n_sequences):
            a, b = part.seq_start[i : i + 2]
            assert (part.sequence[a:b] == i).all()
            whole = step.sequence[part.ids[a]]
            assert part.state_slot[i] == step.state_slot[whole]
            assert np.array_equal(part.tables[0][i], step.tables[0][whole])
            assert b - a >= min(3, lengths[whole])


# -- The pipeline -------------------------------------------------------------------------------


class Device:
    """A program that calls `on_run` in place of launches."""

    def __init__(self, on_run: Callable[[Step], None]) -> None:
        self.run_step = on_run
        self.rows = np.zeros((0, 1), np.float32)

    def run(self, step: Step, first: int, last: int) -> None:
        self.run_step(step)
        self.rows = step.ids[:, None].astype(np.float32)

    def read(self, ref: Ref, rows: int) -> FloatArray:
        return self.rows[:rows].copy()

    def write(self, ref: Ref, rows: FloatArray) -> None:
        assert len(rows)


def pipeline(*devices: Device) -> Pipeline:
    value = Ref(1, Dim.TOKENS, 1, RowFormat.F32, 0, 4)
    part = Plan((), NO_OUTPUT, 0, 64, 64)
    schedule: list[Segment | Transfer] = [Segment(0, 0, 1)]
    for i in range(1, len(devices)):
        schedule += [Transfer(i - 1, i, value, value), Segment(i, 0, 1)]
    plan = SplitPlan((), value, 0, 64, 64, parts=(part,) * len(devices), schedule=tuple(schedule))
    return Pipeline(plan, list(devices), last=len(devices) - 1)


def steps(n: int) -> list[Step]:
    zero = np.zeros(1, np.int32)
    start = np.array([0, 1], np.int32)
    return [Step(zero + i, zero, zero, zero, start, zero) for i in range(n)]


def test_devices_work_at_the_same_time() -> None:
    """The first device does not finish its second part before the second device has begun."""
    begun = threading.Event()

    def first(step: Step) -> None:
        assert step.ids[0] == 0 or begun.wait(10)

    found = pipeline(Device(first), Device(lambda _: begun.set())).run(steps(3), True)
    assert np.concatenate([each.logits() for each in found]).tolist() == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_the_failure_of_one_device_ends_the_step(failing: int) -> None:
    def fail(step: Step) -> None:
        if step.ids[0] == 1:
            raise DeviceError("the device is lost")

    devices = [Device(fail if i == failing else lambda _: None) for i in range(3)]
    with pytest.raises(DeviceError, match="is lost"):
        pipeline(*devices).run(steps(4), True)


def test_tokens_that_see_later_ones_stay_in_one_part() -> None:
    for path, overlaps in ((ENCODERS / "bert.gguf", False), (FIXTURES / "qwen3.gguf", True)):
        with GGUFFile.open(path) as file:
            spec, graph = load(file)
        devices = [api.create("ref"), api.create("ref")]
        backend = SplitBackend(devices, even_split(spec.n_layers, 2).assign())
        plan = make_plan(graph, backend, max_tokens=8, max_outputs=8)
        assert can_overlap(plan) == overlaps


def test_devices_that_take_several_turns_do_not_overlap() -> None:
    turns = (Segment(0, 0, 1), Segment(1, 0, 1), Segment(0, 1, 2))
    assert can_overlap(SplitPlan((), NO_OUTPUT, 0, 8, 8, schedule=turns[:2]))
    assert not can_overlap(SplitPlan((), NO_OUTPUT, 0, 8, 8, schedule=turns))
