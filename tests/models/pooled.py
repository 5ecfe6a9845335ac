"""Sequences of a model on a real cache pool that are rolled back, preempted and restored at random.

This is what an engine that verifies drafts does with a sequence: a step runs a few accepted rows
and some rejected ones after them, the sequence is rolled back to its last accepted row, blocks that
have left a window are given back, and now and then the sequence is copied to host memory, released
and found again in the prefix cache, or found on disk by another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from zinc.backends.api import Backend, CacheLayout
from zinc.backends.plans import Plan
from zinc.engine.cache_layout import cache_groups, state_bytes_per_sequence
from zinc.kv import CachePool, key_of
from zinc.kv.disk import DiskCache
from zinc.kv.pool import Allocation
from zinc.kv.store import FolderStore
from zinc.ops.recurrent_state import CHUNK
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, KVState, RecurrentState

# The least that kernels take, so that blocks leave a window of 16.
BLOCK_TOKENS = 16
STATE_SLOTS = 6


class PooledModel:
    """A program, its cache and the pool of the cache, for `n_sequences` of `n_tokens`."""

    def __init__(
        self, loaded: tuple[Backend, Plan], kv_dtype: str, n_sequences: int, n_tokens: int
    ) -> None:
        backend, plan = loaded
        layers = [state for state in plan.states if isinstance(state, KVState)]
        windows = sorted({layer.window for layer in layers}) or [0]
        n_blocks = (n_sequences + 1) * -(-(n_tokens + CHUNK) // BLOCK_TOKENS)
        layout = CacheLayout(
            BLOCK_TOKENS,
            (n_blocks,) * len(windows),
            kv_dtype,
            {layer.name: windows.index(layer.window) for layer in layers},
            STATE_SLOTS,
        )
        self.cache = backend.allocate(plan.states, layout)
        self.program = backend.prepare(plan, self.cache)
        self.pool = CachePool(
            cache_groups(plan.states, layout),
            BLOCK_TOKENS,
            STATE_SLOTS,
            self.cache,
            chunk_tokens=3 * CHUNK,
            recurrent=any(isinstance(s, RecurrentState) for s in plan.states),
            state_bytes=state_bytes_per_sequence(plan.states),
        )

    def step(self, parts: Sequence[tuple[Allocation, int, list[int]]]) -> FloatArray:
        """Run ids from a position on for each allocation; return the logits of all rows."""
        counts = [len(ids) for _, _, ids in parts]
        n_blocks = max(len(allocation.tables[0]) for allocation, _, _ in parts)
        tables = []
        for group in range(len(self.pool.groups)):
            table = np.full((len(parts), n_blocks), -1, np.int32)
            for row, (allocation, _, _) in enumerate(parts):
                table[row, : len(allocation.tables[group])] = allocation.tables[group]
            tables.append(table)
        return self.program.step(
            Step(
                ids=np.concatenate([ids for _, _, ids in parts]).astype(np.int32),
                positions=np.concatenate(
                    [np.arange(at, at + n) for (_, at, _), n in zip(parts, counts, strict=True)]
                ).astype(np.int32),
                sequence=np.repeat(np.arange(len(parts), dtype=np.int32), counts),
                output_rows=np.arange(sum(counts), dtype=np.int32),
                seq_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
                state_slot=np.array([allocation.slot for allocation, _, _ in parts], np.int32),
                tables=tuple(tables),
            )
        )


@dataclass
class Speculating:
    """A sequence whose text is `ids`, of which `n_run` tokens are accepted."""

    ids: list[int]
    wanted: FloatArray  # logits of each position
    allocation: Allocation
    n_run: int = 0
    ahead: int = 0  # rows of the last step that were accepted, of those that it ran
    tail: int = 0  # rows of the last step that were rejected

    def part(self, random: Random) -> tuple[Allocation, int, list[int]]:
        """Return the next rows: some of the text, and rejected ones after it."""
        most = random.choice((1, 2, 4, CHUNK, 2 * CHUNK))
        self.ahead = random.randint(1, min(most, len(self.ids) - self.n_run))
        self.tail = random.choice((0, random.randint(0, CHUNK - 1)))
        garbage = [random.randrange(96) for _ in range(self.tail)]
        return self.allocation, self.n_run, [*self.ids[self.n_run :][: self.ahead], *garbage]

    def accept(self, logits: FloatArray) -> None:
        """Compare the accepted rows of a step, and roll the sequence back to the last of them."""
        wanted = self.wanted[self.n_run : self.n_run + self.ahead]
        np.testing.assert_array_equal(logits[: self.ahead], wanted, err_msg=f"from {self.n_run} on")
        self.n_run += self.ahead

    @property
    def is_complete(self) -> bool:
        return self.n_run == len(self.ids)


def speculate(
    loaded: tuple[Backend, Plan],
    kv_dtype: str,
    texts: Sequence[tuple[list[int], FloatArray]],
    seed: int,
    folder: Path | None = None,
) -> None:
    """Run `texts` (ids, and logits of each) together in random steps, and compare all logits.

    folder: a cache directory; with it, the sequences once continue in a new pool that finds them
    on disk.
    """
    random = Random(seed)
    model = PooledModel(loaded, kv_dtype, len(texts), max(len(ids) for ids, _ in texts))
    running = [Speculating(ids, wanted, model.pool.attach(b"", 0)[0]) for ids, wanted in texts]
    restart_at = random.randrange(len(texts[0][0])) if folder is not None else 1 << 30
    while running:
        parts = []
        for s in running:
            part = s.part(random)
            model.pool.grow(s.allocation, s.n_run + len(part[2]))
            parts.append(part)
        logits = np.split(model.step(parts), np.cumsum([len(ids) for _, _, ids in parts])[:-1])
        for s, rows in zip(running, logits, strict=True):
            s.accept(rows)
            model.pool.trim(s.allocation, s.n_run)
        for s in running:
            _move(model.pool, s, random)
        if folder is not None and running[0].n_run > restart_at:
            model, folder = _restart(model, running, loaded, kv_dtype, folder), None
        running = [s for s in running if not s.is_complete]
        model.pool.check()


def _move(pool: CachePool, s: Speculating, random: Random) -> None:
    """Copy a sequence out and in, or release it and find it in the prefix cache, at times."""
    chosen = random.randrange(8)
    if chosen == 0:
        swapped = pool.swap_out(s.allocation, s.n_run)
        pool.release(s.allocation)
        s.allocation = pool.swap_in(swapped)
    elif chosen == 1:
        pool.release(s.allocation, key_of(s.ids[: s.n_run]))
        s.allocation, s.n_run = pool.attach(key_of(s.ids), len(s.ids) - 1)
    elif chosen == 2:  # for later hits, when this position has been passed
        pool.checkpoint(s.allocation, key_of(s.ids[: s.n_run]))


def _restart(
    model: PooledModel,
    running: Sequence[Speculating],
    loaded: tuple[Backend, Plan],
    kv_dtype: str,
    folder: Path,
) -> PooledModel:
    """Return a new model with an empty cache, on which `running` find their text on disk."""
    disk = DiskCache(FolderStore(folder, "key"), model.pool)
    for s in running:
        model.pool.release(s.allocation, key_of(s.ids[: s.n_run]))
    disk.flush()
    disk.close()
    other = PooledModel(loaded, kv_dtype, len(running), max(len(s.ids) for s in running))
    disk = DiskCache(FolderStore(folder, "key"), other.pool)
    disk.load()
    for s in running:
        before = s.n_run
        s.allocation, s.n_run = other.pool.attach(key_of(s.ids), len(s.ids) - 1)
        assert s.n_run >= min(before, len(s.ids) - 1) - BLOCK_TOKENS or s.n_run == 0
    disk.close()
    return other
