"""Split plans on GPUs that write each other's memory: exchanges of rows are launches of the plan.

Without this, the host reads and writes the rows between the launches of a step. With it, a step is
one submission for each GPU. All GPUs take part in every exchange, also those that neither send nor
receive, because an exchange is a barrier too (kernels/exchange.cu).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from zinc.backends.plans import EXCHANGE, AllReduce, Launch, Ref, Segment, SplitPlan, Transfer
from zinc.backends.split import SplitProgram
from zinc.gpu.arguments.structs import EXCHANGE_BLOCKS, MAX_PEERS, PeerTable
from zinc.gpu.backend import GpuBackend
from zinc.gpu.cache import GpuCache
from zinc.gpu.host import Host
from zinc.gpu.memory import Buffer, aligned
from zinc.gpu.program import GpuProgram
from zinc.ops.registry import Cost
from zinc.ops.step import Step
from zinc.ops.values import Dim, FloatArray

SLOTS = 2  # of mailboxes, used in turn


@dataclass(frozen=True, slots=True)
class Exchange:
    """Rows that some GPUs send and some receive, as the sum of all. Indexed by GPU."""

    dim: Dim
    cols: int
    sent: tuple[Ref | None, ...]
    received: tuple[Ref | None, ...]

    @property
    def in_vectors(self) -> bool:
        """Whether all rows consist of aligned groups of four columns."""
        refs = [ref for ref in (*self.sent, *self.received) if ref is not None]
        return self.cols % 4 == 0 and all(ref.offset % 16 == ref.stride % 16 == 0 for ref in refs)


def exchange_of(entry: AllReduce | Transfer, n_devices: int) -> Exchange:
    """Return the exchange that does what `entry` says."""
    sent: list[Ref | None] = [None] * n_devices
    received: list[Ref | None] = [None] * n_devices
    if isinstance(entry, AllReduce):
        for term in entry.terms:
            sent[term.device], received[term.device] = term.part, term.total
        one = entry.terms[0].total
    else:
        sent[entry.source], received[entry.target] = entry.sent, entry.received
        one = entry.sent
    return Exchange(one.dim, one.cols, tuple(sent), tuple(received))


class Peers:
    """The mailboxes of GPUs that write each other's memory, for the exchanges of a plan.

    The exchanges of one step must have ended on all GPUs before those of the next one begin.
    """

    def __init__(self, hosts: Sequence[Host], plan: SplitPlan) -> None:
        """Allocate mailboxes for `plan`, whose parts run on `hosts`. Raises MemoryLimitError."""
        assert len(hosts) <= MAX_PEERS
        self._plan, n = plan, len(hosts)
        rows = {Dim.TOKENS: plan.max_tokens, Dim.OUTPUTS: plan.max_outputs, Dim.CONSTANT: 1}
        rows[Dim.SEQUENCES] = plan.max_tokens
        entries = [x for x in plan.schedule if not isinstance(x, Segment)]
        self._exchanges = [exchange_of(entry, n) for entry in entries]
        slot_bytes = aligned(max(4 * rows[x.dim] * x.cols for x in self._exchanges))
        flag_bytes = 4 * n * EXCHANGE_BLOCKS
        mailboxes = [host.buffer(SLOTS * n * slot_bytes) for host in hosts]
        flags = [_zeros(host, flag_bytes) for host in hosts]
        rounds = [_zeros(host, 4 * EXCHANGE_BLOCKS) for host in hosts]
        tables = []
        for card, host in enumerate(hosts):
            table = PeerTable(
                mailboxes=_addresses(mailboxes),
                flags=_addresses(flags),
                rounds=rounds[card].address,
                slot_bytes=slot_bytes,
                cards=n,
                card=card,
            )
            packed = np.frombuffer(table.pack(), np.uint8)
            tables.append(host.buffer(aligned(len(packed))))
            host.write(tables[-1], 0, packed)
        self._tables = tables
        self._buffers = (*mailboxes, *flags, *rounds)

    def plan(self) -> SplitPlan:
        """Return the plan whose parts have launches for the exchanges, which follow their segments.

        The entries of the schedule stay, for a host that runs some launches only.
        """
        n_devices = len(self._tables)
        launches: list[list[Launch]] = [[] for _ in range(n_devices)]
        schedule: list[Segment | Transfer | AllReduce] = []
        n = 0
        for entry in self._plan.schedule:
            if isinstance(entry, Segment):
                own = launches[entry.device]
                first = len(own)
                own += self._plan.parts[entry.device].launches[entry.first : entry.last]
                schedule.append(Segment(entry.device, first, len(own)))
                continue
            for device in range(n_devices):
                launches[device].append(self._launch(n, device))
            schedule.append(entry)
            n += 1
        parts = [
            replace(part, launches=tuple(own))
            for part, own in zip(self._plan.parts, launches, strict=True)
        ]
        return replace(self._plan, parts=tuple(parts), schedule=tuple(schedule))

    def _launch(self, n: int, device: int) -> Launch:
        """Return the launch of exchange number `n` on a device."""
        exchange = self._exchanges[n]
        received = exchange.received[device]
        attrs = {
            "cols": exchange.cols,
            "peers": self._tables[device].address,
            "receivers": _bits(exchange.received),
            "senders": _bits(exchange.sent),
            "slot": n % SLOTS,
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
    """The program of a split plan on GPUs that exchange rows by themselves."""

    def __init__(self, plan: SplitPlan, peers: Peers, programs: Sequence[GpuProgram]) -> None:
        """Make a program. programs: of the parts of `peers.plan()`, one for each GPU."""
        super().__init__(peers.plan(), programs)
        self.plan = plan
        self._peers, self._gpus = peers, tuple(programs)

    def step(self, step: Step) -> FloatArray:
        started = perf_counter()
        maker = self._makers[self.plan.output.id]
        running = [gpu.submit(step, logits=i == maker) for i, gpu in enumerate(self._gpus)]
        for each in running:
            each.wait()
        self.work.waited_s += perf_counter() - started
        self.work.submissions += len(running)
        return running[maker].logits()


def peer_program(
    backends: Sequence[GpuBackend], plan: SplitPlan, caches: Sequence[GpuCache]
) -> PeerProgram:
    """Return the program of `plan` on GPUs that write each other's memory."""
    peers = Peers([backend.host for backend in backends], plan)
    parts = zip(backends, peers.plan().parts, caches, strict=True)
    return PeerProgram(plan, peers, [gpu.prepare(part, cache) for gpu, part, cache in parts])


def _addresses(buffers: Sequence[Buffer]) -> tuple[int, ...]:
    return tuple(buffer.address for buffer in buffers) + (0,) * (MAX_PEERS - len(buffers))


def _zeros(host: Host, n_bytes: int) -> Buffer:
    buffer = host.buffer(n_bytes)
    host.clear(buffer)
    return buffer


def _bits(refs: Sequence[Ref | None]) -> int:
    return sum(1 << i for i, ref in enumerate(refs) if ref is not None)
