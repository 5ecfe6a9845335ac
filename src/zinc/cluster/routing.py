"""Choice of a replica: the longest cached prefix first, then the least load.

A `Sketch` is the set of prompt blocks that a replica probably has in its prefix cache. Replicas
report theirs every few seconds. A router adds the prompts that it sends in between, so the next
turn of a conversation finds its replica at once.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from zinc.cluster.prompt_blocks import split

SLACK = 8
"""Requests by which a replica may be busier than the least busy one and still be preferred."""

REPORTED_BLOCKS = 1 << 14
"""Most blocks of a reported sketch: 128 KB of digests for 4 MB of text."""

REPORT_S = 2.0  # between the sketches that a replica reports

_RECENT_REPORTS = 2  # reports that may lack a routed prompt, which still waits


class Sketch:
    """A set of at most `capacity` block digests; the least recently used ones are dropped."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, blocks: Iterable[bytes]) -> None:
        """Add the blocks of a prompt."""
        # In reverse, so that the end of a prompt is dropped before its beginning.
        for block in reversed(list(blocks)):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > max(0, self.capacity):
            self._blocks.popitem(last=False)

    def n_matching(self, blocks: Sequence[bytes]) -> int:
        """Return how many of the first `blocks` are in this sketch without a gap."""
        return next((i for i, b in enumerate(blocks) if b not in self._blocks), len(blocks))

    def newest(self, count: int) -> bytes:
        """Return the digests of the `count` most recently used blocks, oldest first."""
        return b"".join(list(self._blocks)[-count:])


class RoutingTable:
    """The sketches of all replicas, by the name of the replica.

    capacity: most blocks of a sketch.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sketches: dict[str, Sketch] = {}
        self._reports: dict[str, int] = {}
        self._recent: dict[str, list[list[list[bytes]]]] = {}

    def report(self, replica: str, number: int, blocks: bytes) -> None:
        """Take the sketch that a replica reports; `number` changes when the sketch does."""
        if self._reports.get(replica) == number:
            return
        self._reports[replica] = number
        recent = [*self._recent.get(replica, []), []][-_RECENT_REPORTS:]
        self._recent[replica] = recent
        sketch = self._sketches[replica] = Sketch(self._capacity)
        sketch.add(reversed(split(blocks)))
        for prompts in recent:
            for prompt in prompts:
                sketch.add(prompt)

    def sent(self, replica: str, blocks: Sequence[bytes]) -> None:
        """Note that a prompt was sent to a replica."""
        self._sketches.setdefault(replica, Sketch(self._capacity)).add(blocks)
        self._recent.setdefault(replica, [[]])[-1].append(list(blocks))

    def keep(self, replicas: Iterable[str]) -> None:
        """Forget all replicas but these."""
        for gone in self._sketches.keys() - set(replicas):
            del self._sketches[gone]
            self._reports.pop(gone, None)
            self._recent.pop(gone, None)

    def rank(
        self, loads: Mapping[str, int], blocks: Sequence[bytes], avoid: Iterable[str] = ()
    ) -> list[str]:
        """Return the replicas of `loads`, the best one for a prompt first.

        loads: running and waiting requests of each replica. avoid: replicas that come last. If a
        replica is much busier than another one, its prefix does not count. Among replicas with the
        same prefix and load, the one with the fewest cached blocks comes first.
        """
        avoided = set(avoid)
        least = min((n for name, n in loads.items() if name not in avoided), default=0)

        def order(name: str) -> tuple[bool, int, int, int, str]:
            sketch = self._sketches.get(name)
            is_busy = loads[name] > least + SLACK
            found = 0 if sketch is None or is_busy else sketch.n_matching(blocks)
            n_cached = 0 if sketch is None else len(sketch)
            return name in avoided, -found, loads[name], n_cached, name

        return sorted(loads, key=order)


def choose(
    mode: str,
    table: RoutingTable,
    loads: Mapping[str, int],
    blocks: Sequence[bytes],
    avoid: Iterable[str] = (),
    rng: random.Random | None = None,
) -> list[str]:
    """Return the replicas of `loads`, the best one for a prompt first.

    mode: "prefix", "load" (ignore prefixes) or "random". rng: for "random". See `rank`.
    """
    if mode == "random":
        avoided = set(avoid)
        names = (rng or random).sample(sorted(loads), len(loads))
        return sorted(names, key=lambda name: name in avoided)
    return table.rank(loads, blocks if mode == "prefix" else (), avoid)
