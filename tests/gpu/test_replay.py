"""Recording and replay on a host without a device, which logs the calls."""

from __future__ import annotations

import numpy as np
import pytest
from logging_host import LoggingHost
from models.harness import FIXTURES

from zinc.backends.api import CacheLayout
from zinc.backends.plans import Plan
from zinc.backends.vulkan import VulkanKernels
from zinc.formats.gguf import GGUFFile
from zinc.gpu import program
from zinc.gpu.arguments.structs import StepHeader
from zinc.gpu.backend import GpuBackend
from zinc.gpu.program import IN_FLIGHT, GpuProgram
from zinc.models import load
from zinc.ops.penalties import PENALTY_PARAMS, RowPenalties
from zinc.ops.sampling import sampling_step
from zinc.ops.step import SAMPLE_PARAMS, SampleParams, Step
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data


class LoggingBackend(VulkanKernels, GpuBackend):
    """A backend on a logging host."""


def program_of(name: str, samples: bool = False) -> tuple[LoggingHost, GpuProgram]:
    host = LoggingHost()
    backend = LoggingBackend(host)
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        plan: Plan = make_plan(
            load(file)[1], backend, max_tokens=64, max_outputs=8, samples=samples
        )
        for weight in plan.weights:
            tensor = file.tensors[weight.tensor]
            backend.upload(weight, tensor_data(weight, tensor, tensor))
    layout = CacheLayout(64, (4, 4), "f16", state_slots=2)
    return host, backend.prepare(plan, backend.allocate(plan.states, layout))


def step_of(position: int, n: int = 1, samples: bool = False, blocks: int = 4) -> Step:
    params = np.zeros(1, SAMPLE_PARAMS)
    params["k"] = 1
    return Step(
        ids=np.arange(n, dtype=np.int32),
        positions=np.arange(position, position + n, dtype=np.int32),
        sequence=np.zeros(n, np.int32),
        output_rows=np.array([n - 1], np.int32),
        seq_start=np.array([0, n], np.int32),
        state_slot=np.zeros(1, np.int32),
        tables=(np.arange(blocks, dtype=np.int32)[None], np.zeros((1, 4), np.int32)),
        sample_params=params if samples else None,
    )


def test_steps_of_a_bucket_replay_one_recording() -> None:
    host, running = program_of("qwen3")
    for position in range(5):
        logits = running.step(step_of(position))
        assert logits.shape == (1, running.plan.output.cols)
        assert (logits == position + 1).all(), "the rows of this run"
    assert len(host.recorded) == 1
    assert host.submitted == host.recorded * 5
    assert host.waited == [1, 2, 3, 4, 5]
    running.step(step_of(5, n=3))
    assert len(host.recorded) == 2
    assert running.counts(step_of(0)) == host.recorded[0].counts
    assert running.work.submissions == 6


def test_two_steps_are_in_flight_with_data_of_their_own() -> None:
    host, running = program_of("qwen3", samples=True)
    first, second = (running.sample(step_of(i, samples=True)) for i in range(2))
    assert host.waited == []
    assert len(host.recorded) == IN_FLIGHT == 2
    nodes = [node for recording in host.recorded for node in recording.graph.nodes]
    headers = {node.dispatch.arguments.step for node in nodes}
    assert len(headers) == 2
    third = running.sample(step_of(2, samples=True))
    assert host.waited == [1], "the third step needs the data of the first"
    assert len(host.recorded) == 2
    assert [x.tokens()[0, 0] for x in (second, third)] == [2, 3]
    assert host.waited == [1, 2, 3]
    assert first.done


def test_a_wait_sleeps_only_if_the_device_has_more_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "POLL_S", 1e9)
    host, running = program_of("qwen3", samples=True)
    for i in range(2):
        running.sample(step_of(i, samples=True)).tokens()
    assert host.slept == [False, False]
    first, second = (running.sample(step_of(i, samples=True)) for i in range(2, 4))
    first.tokens()
    second.tokens()
    assert host.slept[2:] == [True, False]


def test_a_wait_for_a_long_step_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "POLL_S", -1e9)
    host, running = program_of("qwen3")
    running.step(step_of(0))
    assert host.slept == [True]


def test_kernels_read_the_sizes_and_arrays_of_the_step() -> None:
    host, running = program_of("qwen3")
    step = step_of(7, n=3)
    running.step(step)
    address = host.recorded[0].graph.nodes[0].dispatch.arguments.step
    layout = StepHeader.layout()
    header = host.at(address, layout.size)
    assert header[: 5 * 4].view(np.uint32).tolist() == [3, 1, 1, 2, 0]

    def pointed(name: str, n: int, index: int = 0) -> list[int]:
        at = layout.offset(name) + 8 * index
        found = host.at(int(header[at : at + 8].view(np.uint64)[0]), 4 * n)
        return found.view(np.int32).tolist()

    assert host.at(address + layout.size, 12).view(np.int32).tolist() == [7, 8, 9]
    assert pointed("ids", 3) == [0, 1, 2]
    assert pointed("output_rows", 1) == [2]
    assert pointed("seq_start", 2) == [0, 3]
    assert pointed("tables", 4) == [0, 1, 2, 3]
    assert pointed("tables", 4, index=1) == [0, 0, 0, 0]
    at = layout.offset("table_stride")
    assert header[at : at + 8].view(np.uint32).tolist() == [4, 4]


def test_kernels_read_the_penalties_of_the_step() -> None:
    """Their memory is replaced when it is too small, and the header then has another address."""
    host, running = program_of("qwen3", samples=True)
    layout = StepHeader.layout()
    running.sample(step_of(0, samples=True)).tokens()
    plain = host.recorded[-1]
    for n in (3, 1000, 5):
        counts = np.arange(2 * n, dtype=np.uint32).reshape(n, 2)
        penalties = RowPenalties(1.5, 0.5, 0.25, counts, counts_input=True)
        step = sampling_step(step_of(1), [SampleParams(1, penalties=penalties)])
        running.sample(step).tokens()
        kernels = [node.dispatch.kernel.name for node in host.recorded[-1].graph.nodes]
        assert kernels[kernels.index("sample") - 1] == "penalize"
        address = host.submitted[-1].graph.nodes[0].dispatch.arguments.step
        header = host.at(address, layout.size)
        at = layout.offset("penalties")
        rows = int(header[at : at + 8].view(np.uint64)[0])
        assert rows
        row = host.at(rows, PENALTY_PARAMS.itemsize).view(PENALTY_PARAMS)[0]
        assert row.tolist() == (1.5, 0.5, 0.25, 1, 0, n)
        pairs = host.at(rows + PENALTY_PARAMS.itemsize, 8 * n).view(np.uint32)
        assert pairs.tolist() == list(range(2 * n))
    running.sample(step_of(2, samples=True)).tokens()
    assert host.submitted[-1] is plain, "a step without penalties runs no further kernel"
    assert "penalize" not in {node.dispatch.kernel.name for node in plain.graph.nodes}


def test_old_recordings_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_RECORDINGS", 2)
    host, running = program_of("qwen3")
    for n in (1, 2, 4, 1):
        running.step(step_of(0, n=n))
    assert len(host.recorded) == 4
    running.step(step_of(0, n=4))
    assert len(host.recorded) == 4


def test_parts_of_a_step_are_recorded_without_the_rest() -> None:
    host, running = program_of("qwen35moe")
    n = len(running.plan.launches)
    for first, last in ((0, 5), (5, n), (0, 5)):
        running.run(step_of(0), first, last)
    assert len(host.recorded) == 2
    assert {node.launch for node in host.recorded[0].graph.nodes} <= set(range(5))
    assert {node.launch for node in host.recorded[1].graph.nodes} <= set(range(n - 5))
