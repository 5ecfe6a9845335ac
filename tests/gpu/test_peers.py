"""Split plans whose GPUs exchange rows by themselves, with CUDA's kernels on the CPU emulator."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from cuda_emulator import emulated
from cuda_emulator.emulated import EmulatedBackend, EmulatedHost, EmulatedRecording
from models.harness import FIXTURES, MAX_TOKENS, Runner, expected, relative_error

from zinc.backends.api import Backend
from zinc.backends.plans import EXCHANGE, AllReduce, Segment, SplitPlan
from zinc.backends.split import SplitBackend
from zinc.engine.load import link
from zinc.formats.gguf import GGUFFile
from zinc.gpu.bucket import Bucket
from zinc.gpu.cache import GpuCache
from zinc.gpu.dispatch import KernelVariant
from zinc.gpu.graph import DispatchGraph
from zinc.gpu.hazards import dependencies
from zinc.gpu.host import Download
from zinc.gpu.peers import PeerProgram, Peers, peer_program
from zinc.models import load
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data

pytestmark = pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")
TOLERANCE = 5e-3


class QueueingHost(EmulatedHost):
    """A host whose submissions run in threads, as a device does beside the program."""

    tickets = itertools.count(1)
    compiling = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[int, threading.Thread] = {}

    def compile(self, kernels: Sequence[KernelVariant], progress: object = None) -> None:  # type: ignore[override]
        with self.compiling:
            super().compile(kernels)

    def record(self, graph: DispatchGraph, downloads: Sequence[Download] = ()) -> EmulatedRecording:
        return QueuedRecording(self, graph, downloads)

    def wait(self, ticket: int, expected_s: float = 0.0) -> None:
        thread = self.running.pop(ticket)
        thread.join(timeout=120)
        assert not thread.is_alive(), "an exchange waits for a card that does not take part"


class QueuedRecording(EmulatedRecording):
    def submit(self) -> int:
        assert isinstance(self.host, QueueingHost)
        ticket = next(self.host.tickets)
        thread = threading.Thread(target=super().submit, daemon=True)
        self.host.running[ticket] = thread
        thread.start()
        return ticket


class PeerBackend(EmulatedBackend):
    """The CUDA backend on an emulated card that the others can reach."""

    def __init__(self) -> None:
        super().__init__(QueueingHost())

    def link(
        self, devices: Sequence[Backend], plan: SplitPlan, caches: Sequence[GpuCache]
    ) -> PeerProgram:
        return peer_program([x for x in devices if isinstance(x, PeerBackend)], plan, caches)


def planned(name: str, shares: tuple[float, ...]) -> tuple[SplitBackend, SplitPlan]:
    backend = SplitBackend([PeerBackend() for _ in shares], shares)
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        graph = load(file)[1]
        plan = make_plan(graph, backend, max_tokens=MAX_TOKENS, max_outputs=MAX_TOKENS)
        assert isinstance(plan, SplitPlan)
        backend.keep(plan)
        for w in plan.weights:
            backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    return backend, plan


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
    backend, plan = planned(name, shares)
    runner = Runner(FIXTURES / f"{name}.gguf", loaded=(backend, plan))
    assert isinstance(runner.program, PeerProgram)
    got = [runner.feed_in_chunks(ids[:9], 7), runner.feed_in_chunks(ids[9:11], 1)]
    assert relative_error(np.concatenate(got), want[:11]) <= TOLERANCE


@pytest.mark.every
def test_launches_that_the_host_runs_give_the_same_logits() -> None:
    """`zinc verify` runs launches one by one, and the host exchanges the rows between them."""
    ids, want = expected("qwen3")
    backend, plan = planned("qwen3", (1.0, 1.0))
    runner = Runner(FIXTURES / "qwen3.gguf", loaded=(backend, plan))
    program = runner.program
    assert isinstance(program, PeerProgram)
    program.step = super(PeerProgram, program).step  # type: ignore[method-assign]
    assert relative_error(runner.feed((0, ids[:5]))[0], want[:5]) <= TOLERANCE


def test_exchanges_follow_their_segments_in_the_parts_of_all_cards() -> None:
    backend, plan = planned("qwen3", (1.0, 1.0))
    linked = Peers([QueueingHost(), QueueingHost()], plan).plan()
    n_exchanges = sum(not isinstance(entry, Segment) for entry in plan.schedule)
    for device, part in enumerate(linked.parts):
        found = [i for i, launch in enumerate(part.launches) if launch.kernel == EXCHANGE]
        assert len(found) == n_exchanges
        slots = [part.launches[i].attributes["slot"] for i in found]
        assert slots == [i % 2 for i in range(n_exchanges)]
        others = tuple(x for x in part.launches if x.kernel != EXCHANGE)
        assert others == plan.parts[device].launches
        after = dependencies(part, Bucket(16, 16, 1, 256, False, samples=False))
        assert all(a in after[b] for a, b in itertools.pairwise(found))
    assert backend.split.is_by_tensor
