"""Split plans on GPUs with peer access: exchanges of rows are launches of the plan.

Without peer access, the host reads and writes the rows between the launches of a step. With it, a
step is one submission for each GPU, and steps are queued before earlier ones have ended. An
exchange is a barrier between the GPUs that take part in it (kernels/exchange.cu). All GPUs take
part in an all-reduce. A transfer between layers involves only its sender and its receiver: the
remaining GPUs may be running other steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, zip_longest
from time import perf_counter
from typing import TypeAlias, cast

import numpy as np

from zinc.backends.api import Cache, FinishedStep, StepResult
from zinc.backends.capabilities import BackendKind
from zinc.backends.micro_batches import joined, micro_batch_tokens
from zinc.backends.plans import EXCHANGE, AllReduce, Launch, Ref, Segment, SplitPlan, Transfer
from zinc.backends.split_program import SplitCache, SplitProgram
from zinc.backends.step_queue import StepQueue
from zinc.core.dataclass import dataclass
from zinc.gpu.arguments.structs import EXCHANGE_BLOCKS, MAX_PEERS, PeerTable
from zinc.gpu.backend import GpuBackend
from zinc.gpu.cache import GpuCache
from zinc.gpu.host import Host
from zinc.gpu.memory import Buffer, aligned
from zinc.gpu.program import IN_FLIGHT, GpuProgram, RunningStep
from zinc.ops.registry import Cost
from zinc.ops.sampling import SAMPLED_COLS
from zinc.ops.step import IntArray, Step
from zinc.ops.values import Dim, FloatArray

TURNS = 2  # a mailbox is double-buffered: exchanges of a group alternate between two parts
Group: TypeAlias = tuple[frozenset[int], Dim, bool]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Rows that some GPUs send, and whose sum some GPUs receive. Both are indexed by GPU.

    participants: the GPUs that wait for each other. An exchange without senders is a barrier.
    sampling: it runs only in steps that sample.
    """

    dim: Dim
    cols: int
    sent: tuple[Ref | None, ...]
    received: tuple[Ref | None, ...]
    participants: frozenset[int]
    sampling: bool = False

    @property
    def in_vectors(self) -> bool:
        """Whether all rows consist of aligned groups of four columns."""
        refs = [ref for ref in (*self.sent, *self.received) if ref is not None]
        return self.cols % 4 == 0 and all(ref.offset % 16 == ref.stride % 16 == 0 for ref in refs)

    @property
    def group(self) -> Group:
        """Key of the exchanges that alternate between the same two parts of the mailboxes.

        In a step, all of them run or none does.
        """
        return self.participants, self.dim, self.sampling

    def mail_bytes(self, max_rows: int) -> int:
        """Return the bytes that a sender writes into a mailbox."""
        return aligned(4 * max_rows * self.cols)

    def barrier(self) -> Exchange:
        """Return an exchange of no rows between the same GPUs, in the same steps."""
        nothing = (None,) * len(self.sent)
        return replace(self, cols=1, sent=nothing, received=nothing)


def exchange_of(entry: AllReduce | Transfer, n_devices: int, in_pairs: bool) -> Exchange:
    """Return the exchange that implements `entry`.

    in_pairs: in a transfer, only the GPUs that send and receive take part.
    """
    sent: list[Ref | None] = [None] * n_devices
    received: list[Ref | None] = [None] * n_devices
    participants = frozenset(range(n_devices))
    if isinstance(entry, AllReduce):
        for term in entry.terms:
            sent[term.device], received[term.device] = term.part, term.total
        one = entry.terms[0].total
    else:
        sent[entry.source], received[entry.target] = entry.sent, entry.received
        one = entry.sent
        if in_pairs:
            participants = frozenset((entry.source, entry.target))
    return Exchange(one.dim, one.cols, tuple(sent), tuple(received), participants)


def token_exchanges(plan: SplitPlan) -> list[Exchange]:
    """Return the exchange of sampled tokens, if a GPU reads them that does not sample them."""
    received = [None if part.output.cols else part.sampled for part in plan.parts]
    sent = [part.sampled if part.output.cols else None for part in plan.parts]
    if not any(received) or not any(sent):
        return []
    pairs = enumerate(zip(sent, received, strict=True))
    participants = frozenset(i for i, refs in pairs if any(refs))
    refs = tuple(sent), tuple(received)
    return [Exchange(Dim.OUTPUTS, SAMPLED_COLS, *refs, participants, sampling=True)]


def exchanges_of(plan: SplitPlan) -> list[list[Exchange]]:
    """Return the exchanges that implement each entry of the schedule of `plan`.

    The last element holds the exchanges after the schedule. Each group has an even number of
    exchanges in a step, so that they alternate between the two parts of a mailbox from one step to
    the next: a barrier is added to a group with an odd number.
    """
    in_pairs = not any(isinstance(entry, AllReduce) for entry in plan.schedule)
    found: list[list[Exchange]] = [
        [] if isinstance(entry, Segment) else [exchange_of(entry, len(plan.parts), in_pairs)]
        for entry in plan.schedule
    ]
    found.append(token_exchanges(plan))
    counts = Counter(exchange.group for own in found for exchange in own)
    for own in reversed(found):
        for exchange in tuple(own):
            if counts[exchange.group] % 2:
                own.append(exchange.barrier())
                counts[exchange.group] += 1
    return found


def _turn_bytes(
    exchanges: Sequence[Sequence[Exchange]], rows: Mapping[Dim, int]
) -> dict[Group, int]:
    """Return the bytes of a turn of each group. rows: the most rows of each dim in a step."""
    found: dict[Group, int] = {}
    for exchange in chain.from_iterable(exchanges):
        n_senders = sum(ref is not None for ref in exchange.sent)
        n_bytes = n_senders * exchange.mail_bytes(rows[exchange.dim])
        found[exchange.group] = max(n_bytes, found.get(exchange.group, 0))
    return found


class Peers:
    """Mailboxes through which GPUs with peer access exchange the rows of a plan."""

    def __init__(self, hosts: Sequence[Host], plan: SplitPlan) -> None:
        """Allocate mailboxes for `plan`, whose parts run on `hosts`. Raises MemoryLimitError."""
        assert len(hosts) <= MAX_PEERS
        self._plan, n = plan, len(hosts)
        rows = {Dim.TOKENS: plan.max_tokens, Dim.OUTPUTS: plan.max_outputs, Dim.CONSTANT: 1}
        rows[Dim.SEQUENCES] = plan.max_tokens
        self._rows, self._exchanges = rows, exchanges_of(plan)
        self._turn_bytes = _turn_bytes(self._exchanges, rows)
        *starts, end = accumulate((TURNS * n for n in self._turn_bytes.values()), initial=0)
        self._starts = dict(zip(self._turn_bytes, starts, strict=True))  # in every mailbox
        mailboxes = [host.buffer(end) for host in hosts]
        flags = [_zeros(host, 4 * n * EXCHANGE_BLOCKS) for host in hosts]
        rounds = [_zeros(host, 4 * n * EXCHANGE_BLOCKS) for host in hosts]
        self._tables = [
            _uploaded(
                host,
                PeerTable(
                    mailboxes=_addresses(mailboxes),
                    flags=_addresses(flags),
                    rounds=rounds[gpu].address,
                    n_gpus=n,
                    gpu=gpu,
                ),
            )
            for gpu, host in enumerate(hosts)
        ]
        for host, buffer in zip(hosts, rounds, strict=True):
            # Wait until the flags are cleared. A GPU may still run steps of another program, and
            # clearing after those steps would erase flags that its peers have set meanwhile.
            host.read(buffer, 0, 4)
        self._buffers = (*mailboxes, *flags, *rounds)

    def plan(self) -> SplitPlan:
        """Return the plan with a launch of each exchange, after the segments that it follows.

        Transfers and all-reduces stay in the schedule, for callers that run single launches.
        """
        launches: list[list[Launch]] = [[] for _ in self._tables]
        schedule: list[Segment | Transfer | AllReduce] = []
        turns: Counter[Group] = Counter()
        for entry, exchanges in zip_longest(self._plan.schedule, self._exchanges):
            if isinstance(entry, Segment):
                own = launches[entry.device]
                first = len(own)
                own += self._plan.parts[entry.device].launches[entry.first : entry.last]
                entry = Segment(entry.device, first, len(own))
            for exchange in exchanges:
                for device in exchange.participants:
                    launches[device].append(self._launch(exchange, turns[exchange.group], device))
                turns[exchange.group] += 1
            schedule += [] if entry is None else [entry]
        parts = [
            replace(part, launches=tuple(own))
            for part, own in zip(self._plan.parts, launches, strict=True)
        ]
        return replace(self._plan, parts=tuple(parts), schedule=tuple(schedule))

    def _launch(self, exchange: Exchange, n: int, device: int) -> Launch:
        """Return the launch of exchange number `n` of its group on a device."""
        received = exchange.received[device]
        group = exchange.group
        attrs = {
            "cols": exchange.cols,
            "mail_at": self._starts[group] + n % TURNS * self._turn_bytes[group],
            "mail_bytes": exchange.mail_bytes(self._rows[exchange.dim]),
            "participants": sum(1 << i for i in exchange.participants),
            "peers": self._tables[device].address,
            "receivers": _bits(exchange.received),
            "sampling": int(exchange.sampling),
            "senders": _bits(exchange.sent),
            "vectors": int(exchange.in_vectors),
        }
        return Launch(
            EXCHANGE,
            exchange.dim,
            (exchange.sent[device],),
            () if received is None else (received,),
            tuple(attrs.items()),
            Cost(),
            "exchange",
        )


class PeerProgram(SplitProgram):
    """The program of a split plan on GPUs that exchange rows without the host.

    A step of a plan that divides layers is queued in micro-batches: a GPU that has passed on the
    rows of one begins the next one.
    """

    def __init__(
        self, plan: SplitPlan, peers: Peers, programs: Sequence[GpuProgram], steps: StepQueue
    ) -> None:
        """Make a program. programs: of the parts of `peers.plan()`, one for each GPU."""
        size = micro_batch_tokens([BackendKind.DEVICE])
        super().__init__(peers.plan(), programs, size, steps)
        self.plan = plan
        self._peers, self._gpus = peers, tuple(programs)
        # The tokens of the last step that sampled, if the GPUs have them in several parts.
        self._known: IntArray | None = None

    def step(self, step: Step) -> FloatArray:
        """Run a step. Returns at once if it has no output rows; later calls run after it."""
        started = perf_counter()
        logits = self._queue(step, logits=True).logits()
        self.work.waited_s += perf_counter() - started
        return logits

    def sample(self, step: Step) -> StepResult:
        assert step.sample_params is not None
        logits = bool((step.sample_params["k"] == 0).any())
        return self._queue(step if self._known is None else step.with_ids(self._known), logits)

    def _queue(self, step: Step, logits: bool) -> StepResult:
        """Queue a step. Waits for it if several of its micro-batches have output rows."""
        # The host reads the hidden rows of a whole step.
        parts = self._parts(step) if self.plan.hidden is None else [step]
        n_outputs = [len(part.output_rows) for part in parts]
        samples = step.sample_params is not None
        if sum(n > 0 for n in n_outputs) == 1:
            self._known = None if samples else self._known
            running = [self._submit(part, logits) for part in parts]
            return next(x for x, n in zip(running, n_outputs, strict=True) if n)
        result = joined(list(self._results(parts, logits)), self.plan.output.cols)
        if samples:
            self._known = result.tokens()[:, 0].astype(np.int32)
        return result

    def _results(self, parts: Sequence[Step], logits: bool) -> Iterator[FinishedStep]:
        """Queue `parts` and yield copies of the results of each part that has output rows."""
        queued: list[RunningStep | None] = []  # None for a part without output rows
        for part in (*parts, *[None] * IN_FLIGHT):
            # The next part reuses the memory of these results.
            oldest = queued.pop(0) if len(queued) == IN_FLIGHT else None
            if oldest is not None:
                yield FinishedStep(oldest.tokens().copy(), oldest.logits().copy())
            running = None if part is None else self._submit(part, logits)
            queued.append(running if part is not None and len(part.output_rows) else None)

    def _submit(self, step: Step, logits: bool) -> RunningStep:
        """Queue a step on all GPUs; return that of the GPU that makes the output."""
        makes_logits = (logits and i == self._last for i in range(len(self._gpus)))
        pairs = zip(self._gpus, makes_logits, strict=True)
        running = [gpu.submit(step, logits=makes) for gpu, makes in pairs]
        self.work.submissions += len(running)
        return running[self._last]


def peer_program(backends: Sequence[GpuBackend], plan: SplitPlan, cache: Cache) -> PeerProgram:
    """Return the program of `plan` on GPUs with peer access."""
    assert isinstance(cache, SplitCache)
    peers = Peers([backend.host for backend in backends], plan)
    caches = [cast(GpuCache, each) for each in cache.caches]
    parts = zip(backends, peers.plan().parts, caches, strict=True)
    programs = [gpu.prepare(part, each) for gpu, part, each in parts]
    return PeerProgram(plan, peers, programs, cache.steps)


def _addresses(buffers: Sequence[Buffer]) -> tuple[int, ...]:
    return tuple(buffer.address for buffer in buffers) + (0,) * (MAX_PEERS - len(buffers))


def _uploaded(host: Host, table: PeerTable) -> Buffer:
    """Return a buffer of `host` with a packed table."""
    packed = np.frombuffer(table.pack(), np.uint8)
    buffer = host.buffer(aligned(len(packed)))
    host.write(buffer, 0, packed)
    return buffer


def _zeros(host: Host, n_bytes: int) -> Buffer:
    buffer = host.buffer(n_bytes)
    host.clear(buffer)
    return buffer


def _bits(refs: Sequence[Ref | None]) -> int:
    return sum(1 << i for i, ref in enumerate(refs) if ref is not None)
