"""Check that memory stays bounded over thousands of short requests in one process.

    python benchmarks/endurance.py [MODEL] [--requests 10000] [--out FILE]

A quarter of the requests is cancelled at random. Resident memory may grow until the prefix cache is
full: the second half of the requests may add 5% to it, and MOST_HEAP_GROWTH_BYTES to the Python
heap (tracemalloc, after a garbage collection). The last line of output is one JSON object. The exit
status is 1 if memory grows more or cache blocks stay held.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

from zinc import LLM, SamplingParams
from zinc.engine.request import Request

MOST_GROWTH = 0.05
# Allowance for caches of the interpreter (numbers, frames, regular expressions).
MOST_HEAP_GROWTH_BYTES = 256 << 10
SAMPLES = 20


def resident_bytes() -> int:
    """Return the anonymous resident memory of this process; mapped files do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status has no RssAnon: run this on Linux")


class Load:
    """A load generator: `width` requests at a time until `n_requests` were submitted."""

    def __init__(self, llm: LLM, n_requests: int, width: int, seed: int) -> None:
        self._llm, self._n_requests, self._width = llm, n_requests, width
        self._random = random.Random(seed)
        self._stems = [self._ids(n) for n in (20, 90, 200, 400)]
        self._running: list[tuple[Any, int]] = []  # (sequence, tokens after which it is cancelled)
        self.n_made = 0
        self.ends: Counter[str] = Counter()

    def _ids(self, n: int) -> list[int]:
        return [self._random.randrange(3, self._llm.spec.vocab) for _ in range(n)]

    def step(self) -> bool:
        """Run one engine step. Return False once all requests have ended."""
        while len(self._running) < self._width and self.n_made < self._n_requests:
            self._running.append(self._make())
        if not self._running:
            return False
        engine = self._llm.engine
        engine.step()
        for sequence, life in self._running:
            if sequence.n_generated >= life:
                engine.cancel(sequence)
        for sequence, _ in self._running:
            if sequence.finish_reason is not None:
                self.ends[sequence.finish_reason] += 1
        self._running = [r for r in self._running if r[0].finish_reason is None]
        return True

    def _make(self) -> tuple[Any, int]:
        rng = self._random
        ids = [*rng.choice(self._stems), *self._ids(rng.randrange(1, 24))]
        most = rng.randrange(1, 8)
        greedy = rng.random() < 0.5
        params = SamplingParams(temperature=0 if greedy else 0.8, max_tokens=most, seed=1)
        life = rng.randrange(most) if rng.random() < 0.25 else 1 << 30
        self.n_made += 1
        client = f"client {rng.randrange(5)}"
        eog = self._llm.tokenizer.eog_ids
        return self._llm.engine.submit(Request(ids, params, end_tokens=eog, client=client)), life


def grown_lines(first: tracemalloc.Snapshot, last: tracemalloc.Snapshot) -> list[str]:
    """Return the source lines whose allocations grew most between two snapshots."""
    rows = last.compare_to(first, "lineno")
    grown = sorted((r for r in rows if r.size_diff > 0), key=lambda r: -r.size_diff)
    return [f"{r.traceback}: +{r.size_diff} bytes in {r.count_diff} objects" for r in grown[:12]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file (default: the embedded model)")
    parser.add_argument("--requests", type=int, default=10_000, help="requests in all")
    parser.add_argument("--width", type=int, default=8, help="concurrent requests")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--context", type=int, default=None)
    parser.add_argument("--out", help="write the report as JSON")
    args = parser.parse_args()

    rows: list[dict[str, int]] = []
    begin = time.perf_counter()
    with LLM(args.model, threads=args.threads, context=args.context) as llm:
        load = Load(llm, args.requests, args.width, seed=1)
        every = max(1, args.requests // SAMPLES)
        middle: tracemalloc.Snapshot | None = None
        heap = 0
        while load.step():
            if load.n_made < every * (len(rows) + 1):
                continue
            # Tracing starts at a quarter, so that by the middle it covers the cache's contents.
            if 4 * load.n_made >= args.requests and not tracemalloc.is_tracing():
                tracemalloc.start()
            if 2 * load.n_made >= args.requests and middle is None:
                gc.collect()
                middle, heap = tracemalloc.take_snapshot(), tracemalloc.get_traced_memory()[0]
            rows.append(
                {
                    "requests": load.n_made,
                    "resident_bytes": resident_bytes(),
                    "cached_bytes": llm.engine.pool.cached_bytes,
                }
            )
            print(rows[-1], file=sys.stderr)
        gc.collect()
        assert middle is not None
        last = tracemalloc.take_snapshot()
        heap = tracemalloc.get_traced_memory()[0] - heap
        tracemalloc.stop()
        print(*grown_lines(middle, last), sep="\n", file=sys.stderr)
        pool = llm.engine.pool
        held = sum(a.n_held for a in pool.allocators)
        pool.check()
        second = [r["resident_bytes"] for r in rows if 2 * r["requests"] >= args.requests]
        report = {
            "model": llm.path.name,
            "requests": args.requests,
            "width": args.width,
            "seconds": round(time.perf_counter() - begin, 1),
            "ends": dict(load.ends),
            "kv_bytes": llm.memory.kv_bytes,
            "blocks_held": held,
            "rows": rows,
            "growth_of_second_half": round(second[-1] / second[0] - 1, 4),
            "heap_growth_bytes": heap,
        }
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    leaks = report["growth_of_second_half"] > MOST_GROWTH or heap > MOST_HEAP_GROWTH_BYTES or held
    sys.exit(1 if leaks else 0)


if __name__ == "__main__":
    main()
