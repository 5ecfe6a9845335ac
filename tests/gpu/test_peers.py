"""Split plans whose GPUs exchange rows by themselves, with CUDA's kernels on the CPU emulator."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import emulated
from cuda_emulator.emulated import EmulatedBackend, EmulatedHost, EmulatedRecording
from models.harness import FIXTURES, MAX_TOKENS, Runner, expected, relative_error
from models.nextn_files import with_nextn
from models.nextn_oracle import Block
from plan.test_split import Division

from zinc.backends import micro_batches
from zinc.backends.api import Backend, Cache
from zinc.backends.capabilities import BackendKind
from zinc.backends.plans import (
    EXCHANGE,
    NO_OUTPUT,
    AllReduce,
    Plan,
    Segment,
    SplitPlan,
    Transfer,
)
from zinc.backends.split import SplitBackend
from zinc.backends.split_program import SplitCache
from zinc.engine.load import link
from zinc.formats.gguf import GGUFFile
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.hazards import dependencies
from zinc.gpu.memory import Buffer, Bytes
from zinc.gpu.peers import PeerProgram, Peers, peer_program
from zinc.models import load, load_drafts
from zinc.ops.graph import Graph
from zinc.ops.penalties import RowPenalties
from zinc.ops.sampling import sampling_step
from zinc.ops.step import SampleParams, Step
from zinc.ops.values import Constant, Dim
from zinc.plan.layer_split import even_split
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data

pytestmark = pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")
TOLERANCE = 5e-3


class QueueingHost(EmulatedHost):
    """A host whose submissions run one after another, beside the program, as on a device."""

    tickets = itertools.count(1)
    compiling = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[int, threading.Thread] = {}
        self.queued: list[threading.Thread] = []

    def read(self, source: Buffer, offset: int, n_bytes: int) -> Bytes:
        self.settle()
        return super().read(source, offset, n_bytes)

    def write(self, target: Buffer, offset: int, data: Bytes) -> None:
        self.settle()
        super().write(target, offset, data)

    def settle(self) -> None:
        """Wait for everything submitted, unless a submission itself copies memory."""
        if threading.current_thread() not in self.queued and self.queued:
            self.queued[-1].join(timeout=300)

    def compile(self, kernels: Sequence[KernelVariant], progress: object = None) -> None:  # type: ignore[override]
        with self.compiling:
            super().compile(kernels)

    def recording(self) -> type[EmulatedRecording]:
        return QueuedRecording

    def wait(self, ticket: int, expected_s: float = 0.0, sleeps: bool = True) -> None:
        thread = self.running.pop(ticket)
        thread.join(timeout=300)
        assert not thread.is_alive(), "an exchange waits for a card that does not take part"


class QueuedRecording(EmulatedRecording):
    def submit(self) -> int:
        assert isinstance(self.host, QueueingHost)
        ticket, before = next(self.host.tickets), self.host.queued[-1:]

        def run() -> None:
            for thread in before:
                thread.join()
            super(QueuedRecording, self).submit()

        thread = threading.Thread(target=run, daemon=True)
        self.host.running[ticket] = thread
        self.host.queued.append(thread)
        thread.start()
        return ticket


class PeerBackend(EmulatedBackend):
    """The CUDA backend on an emulated card that the others can reach."""

    def __init__(self) -> None:
        super().__init__(QueueingHost())

    def reaches(self, devices: Sequence[Backend]) -> bool:
        return True

    def link(self, devices: Sequence[Backend], plan: SplitPlan, cache: Cache) -> PeerProgram:
        return peer_program([x for x in devices if isinstance(x, PeerBackend)], plan, cache)


def planned(
    name: str, division: Division | None, n_cards: int, samples: bool = False
) -> tuple[Backend, Plan]:
    """Return a backend of `n_cards` cards with the weights of a model, and the plan.

    division: None for a single card.
    """
    backend: Backend = PeerBackend()
    if division is not None:
        backend = SplitBackend([PeerBackend() for _ in range(n_cards)], division)
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return backend, uploaded(backend, file, load(file)[1], samples)


def uploaded(backend: Backend, file: GGUFFile, graph: Graph, samples: bool = False) -> Plan:
    """Return the plan of `graph` on `backend`, which then has its weights."""
    sizes = {"max_tokens": MAX_TOKENS, "max_outputs": MAX_TOKENS}
    plan = make_plan(graph, backend, **sizes, samples=samples)
    if isinstance(backend, SplitBackend) and isinstance(plan, SplitPlan):
        backend.keep(plan)
    for w in plan.weights:
        backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    return plan


@pytest.mark.parametrize("n_cards", [2, 3])
def test_cards_add_up_a_row_again_and_again(n_cards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SUMS", 5)
    program, step = link.summing_program([PeerBackend() for _ in range(n_cards)], 64)
    assert isinstance(program, PeerProgram)
    sums = [entry for entry in program.plan.schedule if isinstance(entry, AllReduce)]
    for _ in range(2):
        program.step(step)
        for device, term in enumerate(sums[-1].terms):
            got = program._programs[device].read(term.total, 1)
            want = n_cards**5  # cos(0) is 1, and sin(0) is 0
            assert sorted(set(got[0].tolist())) == pytest.approx([0, want], rel=1e-5)


# Dense; experts and sinks; a hybrid. Two KV heads on three cards leave one without attention.
@pytest.mark.every
@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("qwen3", (1.0, 1.0)),
        ("llama", (1.0, 1.0, 1.0)),
        ("gptoss", (2.0, 1.0)),
        ("qwen35moe", (1.0, 1.0)),
    ],
)
def test_cards_that_exchange_rows_give_the_logits_of_the_model(
    name: str, shares: tuple[float, ...]
) -> None:
    ids, want = expected(name)
    backend, plan = planned(name, shares, len(shares))
    runner = Runner(FIXTURES / f"{name}.gguf", loaded=(backend, plan))
    assert isinstance(runner.program, PeerProgram)
    got = [runner.feed_in_chunks(ids[:9], 7), runner.feed_in_chunks(ids[9:11], 1)]
    assert relative_error(np.concatenate(got), want[:11]) <= TOLERANCE


@pytest.mark.every
def test_cards_divide_a_nextn_block(tmp_path: Path) -> None:
    """The host writes hidden rows to the first card, and reads the block's own rows there."""
    path, rng = with_nextn("qwen35", tmp_path / "m.gguf"), np.random.default_rng(3)
    with GGUFFile.open(path) as file:
        spec, _ = load(file)
        backend = SplitBackend([PeerBackend(), PeerBackend()], (1.0, 1.0))
        plan = uploaded(backend, file, load_drafts(file)[0][0])
        runner = Runner(path, loaded=(backend, plan))
        assert isinstance(runner.program, PeerProgram)
        assert plan.given is not None
        assert plan.hidden is not None
        ids = rng.integers(spec.vocab, size=8).astype(np.int32)
        given = rng.standard_normal((7, spec.hidden)).astype(np.float32)
        runner.program.write(plan.given, given)
        logits = runner.feed((0, ids[:7]))
        own = runner.program.read(plan.hidden, 7)[-1:]
        runner.program.write(plan.given, own)
        logits += runner.feed((0, ids[7:]))
        rows = np.concatenate([given, own]).astype(np.float64)
        want, _ = Block(file, spec.n_layers).rows(ids, rows)
    assert relative_error(np.concatenate(logits), want) <= TOLERANCE


@pytest.mark.every
def test_launches_that_the_host_runs_give_the_same_logits() -> None:
    """`zinc verify` runs launches one by one, and the host exchanges the rows between them."""
    ids, want = expected("qwen3")
    backend, plan = planned("qwen3", (1.0, 1.0), 2)
    runner = Runner(FIXTURES / "qwen3.gguf", loaded=(backend, plan))
    program = runner.program
    assert isinstance(program, PeerProgram)
    program.step = super(PeerProgram, program).step  # type: ignore[method-assign]
    assert relative_error(runner.feed((0, ids[:5]))[0], want[:5]) <= TOLERANCE


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make micro-batches small."""
    monkeypatch.setattr(micro_batches, "MICRO_BATCH_TOKENS", dict.fromkeys(BackendKind, 8))
    monkeypatch.setattr(micro_batches, "LEAST_TOKENS", 3)


def passing_plan(devices: Sequence[Backend]) -> SplitPlan:
    """Return the plan in which the first card makes rows that the last one puts out."""
    graph = Graph()
    row = graph.rope_table(Constant("angles", (1.0,) * 4))
    graph.output = graph.select_rows(row)
    whole = [
        make_plan(graph, device, max_tokens=MAX_TOKENS, max_outputs=MAX_TOKENS)
        for device in devices
    ]
    assert [x.kernel for x in whole[0].launches] == ["rope_table", "select_rows"]
    rows, last = [plan.launches[0].outputs[0] for plan in whole], len(whole) - 1
    launches = [plan.launches[i == last : 1 + (i == last)] for i, plan in enumerate(whole)]
    launches[1:last] = [()] * (last - 1)
    parts = [
        replace(plan, launches=own, output=plan.output if i == last else NO_OUTPUT)
        for i, (plan, own) in enumerate(zip(whole, launches, strict=True))
    ]
    schedule: list[Segment | Transfer] = [Segment(0, 0, 1)]
    schedule += [Transfer(i, i + 1, rows[i], rows[i + 1]) for i in range(last)]
    schedule.append(Segment(last, 0, 1))
    every = tuple(launch for own in launches for launch in own)
    sizes = (0, MAX_TOKENS, MAX_TOKENS)
    return SplitPlan(
        every, whole[last].output, *sizes, parts=tuple(parts), schedule=tuple(schedule)
    )


@pytest.mark.parametrize("n_cards", [2, pytest.param(3, marks=pytest.mark.every)])
def test_cards_pass_on_the_rows_of_queued_micro_batches(n_cards: int, small: None) -> None:
    """Steps without output rows return at once; each row still meets the rows of its own step."""
    devices = [PeerBackend() for _ in range(n_cards)]
    caches = [device.allocate((), link.LAYOUT) for device in devices]
    program = peer_program(devices, passing_plan(devices), SplitCache(caches, link.LAYOUT))
    for first in (0, 24):
        for wanted in ([], [3, 7, 8, 23]):
            got = program.step(step := one_sequence(first, 24, wanted))
            assert len(program._parts(step)) == 3
            angles = np.repeat((first + np.array(wanted))[:, None], 4, axis=1)
            want = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
            assert np.allclose(np.sort(got), np.sort(want), atol=1e-4)


def layers_of(name: str) -> int:
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        return load(file)[0].n_layers


def one_sequence(first: int, n: int, wanted: Sequence[int]) -> Step:
    zero, rows = np.zeros(1, np.int32), np.arange(n, dtype=np.int32)
    ends, table = np.array([0, n], np.int32), np.zeros((1, 1), np.int32)
    outputs = np.array(wanted, np.int32)
    return Step(rows, first + rows, 0 * rows, outputs, ends, zero, (table,))


@pytest.mark.every
# A micro-batch has 8 tokens; gemma4e has none, because its layers share caches.
@pytest.mark.parametrize(
    ("name", "n_cards", "chunk"),
    [("qwen3", 2, 8), ("gemma3", 3, 8), ("gemma4e", 2, 24), ("qwen35moe", 3, 8)],
)
def test_layers_on_cards_give_the_bits_of_one_card(
    name: str, n_cards: int, chunk: int, small: None
) -> None:
    ids, want = expected(name)
    logits = []
    for division, n, n_tokens in (
        (even_split(layers_of(name), n_cards).assign(), n_cards, 24),
        (None, 1, chunk),
    ):
        runner = Runner(FIXTURES / f"{name}.gguf", loaded=planned(name, division, n))
        assert isinstance(runner.program, PeerProgram) == (n > 1)
        got = [runner.feed_in_chunks(ids[:24], n_tokens), runner.feed_in_chunks(ids[24:30], 1)]
        logits.append(np.concatenate(got))
    assert relative_error(logits[0], want[:30]) <= TOLERANCE
    assert np.array_equal(*logits)


@pytest.mark.every
@pytest.mark.parametrize("by_tensor", [True, False])
@pytest.mark.parametrize("n_sequences", [1, 2])
def test_cards_sample_one_step_ahead(by_tensor: bool, n_sequences: int, small: None) -> None:
    """The first card embeds tokens that the host does not know yet.

    The prompts of two sequences end in two micro-batches of one step.
    """
    division = (1.0, 1.0) if by_tensor else even_split(layers_of("qwen3"), 2).assign()
    runners = [
        Runner(
            FIXTURES / "qwen3.gguf",
            loaded=planned("qwen3", division if n > 1 else None, n, samples=True),
            n_sequences=2,
        )
        for n in (2, 1)
    ]
    cards, plan = runners[0].program, runners[0].program.plan
    assert isinstance(cards, PeerProgram)
    assert isinstance(plan, SplitPlan)
    assert [part.sampled is not None for part in plan.parts] == [True, not by_tensor]
    tokens = [drawn(each, n_sequences, ahead=each is runners[0]) for each in runners]
    assert [row[0] for row in tokens[0]] == [row[0] for row in tokens[1]]
    assert np.allclose(*tokens, rtol=TOLERANCE)


def drawn(runner: Runner, n_sequences: int, ahead: bool) -> list[list[float]]:
    """Return the tokens that follow the prompts of sequences, with their largest logits.

    ahead: queue each step before the tokens of the one before are read.
    """
    ids, _ = expected("qwen3")
    prompts = [(0, ids[:24])] if n_sequences == 1 else [(0, ids[:13]), (1, ids[5:16])]
    ends = np.cumsum([len(part) for _, part in prompts]) - 1
    found: list[list[float]] = []
    order, rows = list(range(n_sequences)), list(range(n_sequences))[::-1]
    result = runner.program.sample(with_params(runner.make_step(ends.tolist(), *prompts), 0))
    for i in range(6):
        order = order[::-1]  # the sequence of each row changes from step to step
        tokens = [0] * n_sequences if ahead else [int(result.tokens()[row][0]) for row in rows]
        parts = [(s, np.array([token])) for s, token in zip(order, tokens, strict=True)]
        step = with_params(runner.make_step(range(n_sequences), *parts), i)
        if ahead:
            step = replace(step, sampled_rows=np.array(rows, np.int32))
        before, result = result, runner.program.sample(step)
        found += before.tokens().tolist()
    return found + result.tokens().tolist()


def with_params(step: Step, index: int) -> Step:
    """Return `step` with a chain that draws for its first row, and greedy sampling for others.

    All rows have a penalty on their input tokens.
    """
    penalties = RowPenalties(1.0, 3.0, 0.0, np.zeros((0, 2), np.uint32), counts_input=True)
    drawing = SampleParams(40, 0, 0.95, 0.05, 0.8, index, seed=11, penalties=penalties)
    greedy = [SampleParams(1, penalties=penalties)] * (len(step.output_rows) - 1)
    return sampling_step(step, [drawing, *greedy])


@pytest.mark.parametrize("by_tensor", [True, False])
def test_exchanges_follow_their_segments_in_the_parts_of_all_cards(by_tensor: bool) -> None:
    division = (1.0, 1.0, 1.0) if by_tensor else even_split(layers_of("qwen3"), 3).assign()
    _, plan = planned("qwen3", division, 3)
    assert isinstance(plan, SplitPlan)
    linked = Peers([QueueingHost() for _ in range(3)], plan).plan()
    for device, part in enumerate(linked.parts):
        found = [i for i, launch in enumerate(part.launches) if launch.kernel == EXCHANGE]
        others = tuple(x for x in part.launches if x.kernel != EXCHANGE)
        assert others == plan.parts[device].launches
        after = dependencies(part, Bucket(16, 16, 1, 256, False, samples=False))
        assert all(a in after[b] for a, b in itertools.pairwise(found))
        groups: dict[tuple[int, Dim], list[int]] = {}
        for i in found:
            launch = part.launches[i]
            attrs = launch.attributes
            assert attrs["participants"] >> device & 1
            assert attrs["participants"] == 0b111 or not by_tensor
            assert (
                attrs["senders"] | attrs["receivers"] | attrs["participants"]
                == (attrs["participants"])
            )
            groups.setdefault((attrs["participants"], launch.dim), []).append(attrs["mail_at"])
        for places in groups.values():
            assert len(places) % 2 == 0
            assert all(a != b for a, b in itertools.pairwise([*places, places[0]]))
    neighbours = [{0b011}, {0b011, 0b110}, {0b110}]
    for device, part in enumerate(linked.parts):
        found = {x.attributes["participants"] for x in part.launches if x.kernel == EXCHANGE}
        assert found == ({0b111} if by_tensor else neighbours[device])
