"""The router of a cluster, on Ray Serve's public `RequestRouter` interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from zinc.cluster.messages import Forwarded
from zinc.cluster.prompt_blocks import split
from zinc.cluster.routing import REPORTED_BLOCKS, RoutingTable, choose


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Router that prefers the replica with the longest cached prefix of a prompt."""

    def initialize_state(self, mode: str = "prefix") -> None:
        """Set up the router. mode: "prefix", "load" (ignore prefixes) or "random"."""
        self._mode = mode
        self._table = RoutingTable(REPORTED_BLOCKS)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the candidates, each as a rank of its own, the best one first."""
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        request = _forwarded(pending_request)
        avoid = () if request is None else request.avoid
        blocks = [] if request is None else split(request.blocks)
        if self._mode == "prefix":
            self._table.keep(by_name)
            for name, replica in by_name.items():
                stats: Mapping[str, Any] = replica.routing_stats
                if stats:
                    self._table.report(name, stats["number"], stats["blocks"])
        loads = self._loads(candidate_replicas)
        names = choose(self._mode, self._table, loads, blocks, avoid)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[by_name[name]] for name in names]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Record that a prompt was sent to a replica."""
        request = _forwarded(pending_request)
        if request is not None and request.blocks and self._mode == "prefix":
            self._table.sent(replica_id.unique_id, split(request.blocks))

    def _loads(self, replicas: list[RunningReplica]) -> dict[str, int]:
        known = self.replica_queue_len_cache
        return {r.replica_id.unique_id: known.get(r.replica_id) or 0 for r in replicas}


def _forwarded(pending: PendingRequest | None) -> Forwarded | None:
    """Return the request that a call of a replica carries, or None."""
    if pending is None or not pending.args or not isinstance(pending.args[0], Forwarded):
        return None
    return pending.args[0]
