"""What sequences have of the cache: given as they run, taken when others need it more.

Between the pool, which knows blocks and slots, and the engine, which knows requests: here it is
decided with how much a sequence begins, what it would cost, where its tokens are left for others
that begin alike, and what remains of it when it has to make room.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from zinc.engine.checkpoints import LEAST_TOKENS
from zinc.engine.preemption import Rates
from zinc.engine.scheduler import Demand
from zinc.engine.sequence import Sequence
from zinc.engine.sharing import held_back
from zinc.kv import CachePool


class Holdings:
    """Attaches sequences to a pool and releases them. `swap_bytes` is for copies of those that make
    room; what does not fit, or takes longer to copy, is run again."""

    def __init__(self, pool: CachePool, swap_bytes: int) -> None:
        self.pool, self.swap_bytes = pool, swap_bytes
        self.rates = Rates()

    # -- before a step --------------------------------------------------------------------------

    def demand(self, s: Sequence, tight: bool) -> Demand:
        """What a sequence asks of the scheduler. Without `tight` nobody will be preempted."""
        pool = self.pool
        most = pool.max_blocks(len(s.ids))
        pins: tuple[int, ...] = ()
        frees: tuple[int, ...] = ()
        if s.holding is None:
            n_run, pins = self._prospect(s)
            n_table, held = n_run // pool.block_tokens, (0,) * len(most)
            if s.swapped is not None and n_run < s.swapped.n_tokens:
                n_run, n_table = s.swapped.n_tokens, s.swapped.n_table
                pins = held = s.swapped.n_blocks
        else:
            tables = s.holding.tables
            n_run, n_table = s.n_run, len(tables[0])
            held = tuple(len(t) - n for t, n in zip(tables, s.holding.n_trimmed, strict=True))
            frees = pool.exclusive_blocks(s.holding) if tight else (0,) * len(most)
        missing = pool.blocks(len(s.ids)) - n_table
        return Demand(
            id=s.id,
            pending=len(s.ids) - n_run,
            longest=s.longest_from(n_run),
            n_run=n_run,
            n_table=n_table,
            lacks=tuple(max(0, min(missing, m - h)) for m, h in zip(most, held, strict=True)),
            admitted=s.holding is not None,
            frees=frees,
            pins=pins,
            priority=s.priority,
            client=s.client,
        )

    def held_back(self, sequences: Collection[Sequence]) -> set[int]:
        """Who waits for a prompt that begins alike and is being run."""
        pool = self.pool
        if not pool.prefix_cache or all(s.holding is not None for s in sequences):
            return set()
        least = max(pool.block_tokens, LEAST_TOKENS if pool.recurrent else 0)
        return held_back(sequences, lambda s: self._prospect(s)[0], least, pool.recurrent)

    def _prospect(self, s: Sequence) -> tuple[int, tuple[int, ...]]:
        """Tokens that a waiting sequence would begin with, and the idle blocks that takes."""
        generation = self.pool.generation
        if s.prospect is None or s.prospect[0] != generation:
            s.prospect = generation, self.pool.prospect(s.key, len(s.ids) - 1, s.namespace)
        return s.prospect[1].n_cached, s.prospect[1].pins

    def attach(self, s: Sequence) -> None:
        """Gives a sequence the longest prefix that is cached, or what was copied of it.

        Raises MemoryLimitError, and then the sequence is as it was.
        """
        swapped = s.swapped
        if swapped is None or self._prospect(s)[0] >= swapped.n_tokens:
            s.holding, s.n_run = self.pool.attach(s.key, len(s.ids) - 1, s.namespace)
        else:
            begin = time.perf_counter()
            s.holding = self.pool.swap_in(swapped, s.namespace)
            s.n_run = swapped.n_tokens
            self.rates.copied(swapped.n_bytes, time.perf_counter() - begin)
            self.pool.commit(s.holding, s.key_to(s.n_run))
        s.swapped = None
        if not s.started:
            s.n_cached = min(s.n_run, s.n_prompt)
            s.started = time.perf_counter()

    def trim(self, s: Sequence) -> None:
        """Gives back what has left the windows."""
        if s.holding is not None:
            self.pool.trim(s.holding, s.n_run)

    # -- after it -------------------------------------------------------------------------------

    def ran(self, s: Sequence, count: int, end: int) -> None:
        """Takes note that `count` tokens up to `end` are in the cache."""
        if s.is_reusable:
            self._offer(s, count, end)
        if end == len(s.ids):
            s.key = b""
            s.shares.clear()

    def _offer(self, s: Sequence, count: int, end: int) -> None:
        """Puts what was run where other prompts may find it."""
        pool = self.pool
        assert s.holding is not None
        if end in s.marks:
            pool.checkpoint(s.holding, s.key_to(end))
        elif end - count < s.n_prompt <= end:
            pool.commit(s.holding, s.key_to(end))
        elif end < len(s.ids) and not pool.recurrent:  # whole blocks, for those who come meanwhile
            pool.commit(s.holding, s.key_to(end // pool.block_tokens * pool.block_tokens))

    def preempt(self, s: Sequence, n_bytes_copied: int) -> None:
        """Takes the cache away from a sequence, which will go on from a copy or be run again.

        n_bytes_copied: what others have been copied to. Raises what the device raises while it is
        copied, and then the sequence is as it was.
        """
        assert s.holding is not None
        n_bytes = self.pool.holding_bytes(s.holding)
        has_room = n_bytes_copied + n_bytes <= self.swap_bytes
        if s.is_reusable and not s.is_read and has_room and self.rates.swap_pays(s.n_run, n_bytes):
            begin = time.perf_counter()
            try:
                s.swapped = self.pool.swap_out(s.holding, s.n_run)
                self.rates.copied(n_bytes, time.perf_counter() - begin)
            except MemoryError:  # of the host: it is run again
                pass
        self.put_back(s)
        s.n_preempted += 1

    def put_back(self, s: Sequence, keep: bool = True) -> None:
        """Has a sequence wait again, with what the prefix cache keeps of it."""
        self.release(s, keep)
        s.n_run = 0
        if s.readout is not None and s.is_read:
            s.readout.reset()
            s.n_read = 0
        s.key = b"" if s.is_read else s.key_to(len(s.ids))

    def begin_again(self, s: Sequence) -> None:
        """Forgets what the cache has of a sequence that waits: its text has changed."""
        s.prospect, s.swapped, s.key = None, None, b""
        s.key = s.key_to(len(s.ids))
        s.shares.clear()

    def release(self, s: Sequence, keep: bool = True) -> None:
        """Takes everything back; others may begin with it, unless it is not to be kept."""
        if s.holding is not None:
            key = s.key_to(s.n_run) if keep and s.is_reusable else None
            self.pool.release(s.holding, key)
            s.holding = None
