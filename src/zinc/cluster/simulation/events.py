"""The events of a simulated cluster: arrivals, routing, and the end of steps."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from zinc.cluster.prompt_blocks import BLOCK_BYTES, DIGEST_BYTES, split
from zinc.cluster.routing import REPORT_S, REPORTED_BLOCKS, RoutingTable, Sketch, choose
from zinc.cluster.simulation.rates import StepTimes
from zinc.cluster.simulation.replica import Job, SimulatedReplica
from zinc.cluster.simulation.result import Result
from zinc.cluster.simulation.workload import CACHE_BLOCK_BYTES, Request
from zinc.core.dataclass import dataclass
from zinc.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """The cluster to simulate.

    kv_tokens: tokens of the KV cache of a replica. overhead_s: time that front, router and server
    add to a request. clients: ignore the times of arrival, and have this many clients send requests
    one after the other (0: follow the times).
    """

    replicas: int
    router: str
    times: StepTimes
    kv_tokens: int
    overhead_s: float = 0.0
    clients: int = 0
    seed: int = 0


def simulate(cluster: SimulatedCluster, requests: Sequence[Request]) -> Result:
    """Return the result of sending the requests to the cluster.

    Raises RequestError if one does not fit into a replica.
    """
    return _Simulation(cluster, requests).run()


class _Simulation:
    """The state of a simulation. Events are kept in a heap by their time."""

    def __init__(self, cluster: SimulatedCluster, requests: Sequence[Request]) -> None:
        self._cluster, self._requests = cluster, requests
        self._rng = random.Random(cluster.seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        n_blocks = sum(len(r.cached) for r in requests) // DIGEST_BYTES
        tokens = sum(r.prompt_tokens for r in requests) / max(1, n_blocks)
        block_tokens = max(1, round(tokens))
        _check_room(requests, cluster.kv_tokens, block_tokens)
        text_blocks = int(cluster.kv_tokens / tokens * CACHE_BLOCK_BYTES / BLOCK_BYTES)
        self._replicas = {
            name: SimulatedReplica(
                name,
                cluster.times,
                cluster.kv_tokens // block_tokens,
                block_tokens,
                Sketch(min(REPORTED_BLOCKS, text_blocks)),
            )
            for name in (f"replica {i}" for i in range(cluster.replicas))
        }
        self._table = RoutingTable(REPORTED_BLOCKS)
        self._loads = dict.fromkeys(self._replicas, 0)
        self._reports: Counter[str] = Counter()
        self._changed: set[str] = set()  # replicas whose sketch has changed since their report
        self._after: dict[int, list[int]] = defaultdict(list)  # requests by the one they follow
        self._queue: list[int] = []  # of requests that clients may send
        self._idle_clients = cluster.clients
        self._result = Result(cluster.replicas, cluster.router)

    def run(self) -> Result:
        """Run all events, and return the result."""
        for index, request in enumerate(self._requests):
            if request.follows is not None:
                self._after[request.follows].append(index)
            elif self._cluster.clients:
                heapq.heappush(self._queue, index)
            else:
                self._at(request.at_s, self._arrival(index))
        self._send(0.0)
        if self._cluster.router == "prefix":
            self._at(REPORT_S, self._report)
        while self._events:
            now_s, _, event = heapq.heappop(self._events)
            event(now_s)
        self._result.busy_s = sum(each.busy_s for each in self._replicas.values())
        return self._result

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), event))

    def _send(self, now_s: float) -> None:
        """Have idle clients send requests."""
        while self._idle_clients and self._queue:
            self._idle_clients -= 1
            self._at(now_s, self._arrival(heapq.heappop(self._queue)))

    def _arrival(self, index: int) -> Callable[[float], None]:
        def arrive(now_s: float) -> None:
            request = self._requests[index]
            blocks = split(request.blocks)
            names = choose(self._cluster.router, self._table, self._loads, blocks, rng=self._rng)
            replica = self._replicas[names[0]]
            self._loads[replica.name] += 1
            if self._cluster.router == "prefix":
                self._table.sent(replica.name, blocks)
            job = Job(index, request, now_s)
            self._at(now_s + self._cluster.overhead_s, lambda t: self._deliver(replica, job, t))

        return arrive

    def _deliver(self, replica: SimulatedReplica, job: Job, now_s: float) -> None:
        replica.sketch.add(split(job.request.blocks))
        self._reports[replica.name] += 1
        self._changed.add(replica.name)
        replica.submit(job)
        if replica.run is None:
            self._start(replica, now_s)
        elif replica.run.n_steps > 1:
            replica.interrupt(now_s)
            self._await_end(replica)

    def _start(self, replica: SimulatedReplica, now_s: float) -> None:
        if replica.start(now_s):
            self._await_end(replica)

    def _await_end(self, replica: SimulatedReplica) -> None:
        run = replica.run
        assert run is not None
        n_steps = run.n_steps

        def end(now_s: float) -> None:
            if replica.run is not run or run.n_steps != n_steps:
                return  # it was interrupted, and has ended earlier
            for job in replica.finish():
                self._end(replica, job, now_s)
            self._start(replica, now_s)

        self._at(run.ends_s, end)

    def _end(self, replica: SimulatedReplica, job: Job, now_s: float) -> None:
        self._loads[replica.name] -= 1
        self._result.add(job)
        if self._cluster.clients:
            self._idle_clients += 1
        for index in self._after.pop(job.index, ()):
            if self._cluster.clients:
                heapq.heappush(self._queue, index)
            else:
                self._at(now_s + self._requests[index].at_s, self._arrival(index))
        self._send(now_s)

    def _report(self, now_s: float) -> None:
        """Tell the router what the replicas have cached."""
        for name in self._changed:
            sketch = self._replicas[name].sketch
            self._table.report(name, self._reports[name], sketch.newest(REPORTED_BLOCKS))
        self._changed.clear()
        if self._events:
            self._at(now_s + REPORT_S, self._report)


def _check_room(requests: Sequence[Request], kv_tokens: int, block_tokens: int) -> None:
    """Raise RequestError if a request would never run."""
    longest = max(r.prompt_tokens + r.answer_tokens for r in requests)
    if longest + 2 * block_tokens > kv_tokens:  # two blocks that are not full
        raise RequestError(
            "a request does not fit into a replica",
            f"it has {longest:,} tokens, and the KV cache {kv_tokens:,}",
            "give a larger {kv_tokens}",
        )
