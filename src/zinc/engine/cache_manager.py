"""Each sequence's share of the cache: attached before it runs, committed, and released.

This layer lies between the pool, which knows blocks and slots, and the engine, which knows
requests. It decides how many prompt tokens come from the prefix cache, how many blocks a sequence
needs, which tokens stay in the prefix cache, and whether a preempted sequence is swapped or
recomputed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from zinc.engine.checkpoints import LEAST_TOKENS
from zinc.engine.preemption import Rates
from zinc.engine.scheduler import Demand
from zinc.engine.sequence import Sequence
from zinc.engine.sharing import delayed
from zinc.kv import CachePool, PrefixHit

if TYPE_CHECKING:
    from zinc.kv.disk import DiskCache
    from zinc.kv.fetch import PrefixFetcher


class CacheManager:
    """Manager of the blocks and slots of a pool that sequences hold.

    swap_bytes: host memory for swapped sequences. A preempted sequence that does not fit there, or
    that takes longer to swap than to recompute, is recomputed.
    """

    def __init__(self, pool: CachePool, swap_bytes: int) -> None:
        self.pool, self.swap_bytes = pool, swap_bytes
        self.rates = Rates()
        self._fetcher: PrefixFetcher | None = None

    # -- prefixes of other processes ------------------------------------------------------------

    def fetch_from(self, files: DiskCache) -> None:
        """Fetch prefixes of waiting prompts from the store of `files`, if that is faster."""
        from zinc.kv.fetch import PrefixFetcher

        self._fetcher = PrefixFetcher(files, self.pool)

    @property
    def is_fetching(self) -> bool:
        """Whether a waiting sequence waits for a prefix of another process."""
        return self._fetcher is not None and self._fetcher.is_busy

    def wait_for_fetch(self) -> None:
        """Wait until a fetched file arrives, at most 20 ms."""
        if self._fetcher is not None:
            self._fetcher.wait()

    def advance_fetches(self) -> None:
        """Insert fetched files into the prefix cache, a few megabytes a call."""
        if self._fetcher is not None:
            self._fetcher.advance()

    def close(self) -> None:
        """Stop fetching."""
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None

    def _fetching(self, sequences: Iterable[Sequence]) -> set[int]:
        """Start fetches for waiting sequences; return the ids of sequences that are being fetched.

        Each sequence is looked up once.
        """
        fetcher, found = self._fetcher, set[int]()
        if fetcher is None:
            return found
        for s in sequences:
            if s.cache.fetch is None and s.cache.key and s.is_reusable and not s.is_read:
                ends = {at for i, t in enumerate(s.ids) if t in s.end_tokens for at in (i, i + 1)}
                s.cache.fetch = fetcher.begin(
                    s.cache.key,
                    len(s.ids) - 1,
                    s.namespace,
                    sorted(ends.union(s.cache.checkpoints)) if self.pool.recurrent else (),
                    self.rates.token_s,
                )
            if s.cache.fetch is not None and not s.cache.fetch.is_done:
                found.add(s.id)
        return found

    # -- before a step --------------------------------------------------------------------------

    def demand(self, s: Sequence, tight: bool) -> Demand:
        """Return the tokens and blocks that a sequence needs. tight: preemption is possible."""
        pool, swapped = self.pool, s.cache.swapped
        most = pool.max_blocks(len(s.ids))
        pinned_blocks: tuple[int, ...] = ()
        freeable_blocks: tuple[int, ...] = ()
        if s.cache.allocation is None:
            hit = self._prefix_hit(s)
            n_run, pinned_blocks = hit.n_cached, hit.pinned_blocks
            n_table, held = n_run // pool.block_tokens, (0,) * len(most)
            if swapped is not None and n_run < swapped.n_tokens:
                n_run, n_table = swapped.n_tokens, swapped.n_table
                pinned_blocks = held = swapped.n_blocks
        else:
            allocation = s.cache.allocation
            n_run, n_table = s.n_run, len(allocation.tables[0])
            held = tuple(
                len(t) - n for t, n in zip(allocation.tables, allocation.n_trimmed, strict=True)
            )
            freeable_blocks = pool.exclusive_blocks(allocation) if tight else (0,) * len(most)
        missing = pool.blocks(len(s.ids)) - n_table
        return Demand(
            id=s.id,
            pending=len(s.ids) - n_run,
            runnable=s.tokens_to_checkpoint(n_run),
            n_run=n_run,
            n_table=n_table,
            missing_blocks=tuple(
                max(0, min(missing, m - h)) for m, h in zip(most, held, strict=True)
            ),
            admitted=s.is_running,
            freeable_blocks=freeable_blocks,
            pinned_blocks=pinned_blocks,
            priority=s.request.priority,
            client=s.request.client,
        )

    def delayed(self, sequences: Collection[Sequence]) -> set[int]:
        """Return the ids of waiting sequences whose prefix is being computed or fetched."""
        pool = self.pool
        if not pool.prefix_cache or all(s.is_running for s in sequences):
            return set()
        least = max(pool.block_tokens, LEAST_TOKENS if pool.recurrent else 0)
        back = delayed(sequences, lambda s: self._prefix_hit(s).n_cached, least, pool.recurrent)
        return back | self._fetching(
            s for s in sequences if not s.is_running and s.id not in back and not s.cache.swapped
        )

    def _prefix_hit(self, s: Sequence) -> PrefixHit:
        """Return the cached prefix that a waiting sequence would get."""
        generation, cache = self.pool.generation, s.cache
        if cache.prefix_hit is None or cache.prefix_hit[0] != generation:
            found = self.pool.prefix_hit(cache.key, len(s.ids) - 1, s.namespace)
            cache.prefix_hit = generation, found
        return cache.prefix_hit[1]

    def attach(self, s: Sequence) -> None:
        """Give a sequence its longest cached prefix, or restore its copy if that is longer.

        Raises MemoryLimitError, and leaves the sequence unchanged then.
        """
        cache, swapped = s.cache, s.cache.swapped
        if swapped is None or self._prefix_hit(s).n_cached >= swapped.n_tokens:
            cache.allocation, s.n_run = self.pool.attach(cache.key, len(s.ids) - 1, s.namespace)
        else:
            begin = time.perf_counter()
            cache.allocation = self.pool.swap_in(swapped, s.namespace)
            s.n_run = swapped.n_tokens
            self.rates.copied(swapped.n_bytes, time.perf_counter() - begin)
            self.pool.commit(cache.allocation, s.key_to(s.n_run))
        cache.swapped = None
        if not s.clock.started:
            s.n_cached = min(s.n_run, s.n_prompt)
            s.clock.started = time.perf_counter()

    def trim(self, s: Sequence) -> None:
        """Free the blocks of a sequence that have left all sliding windows."""
        if s.cache.allocation is not None:
            self.pool.trim(s.cache.allocation, s.n_run)

    # -- after a step ---------------------------------------------------------------------------

    def ran(self, s: Sequence, count: int, end: int) -> None:
        """Record that `count` more tokens, up to position `end`, are in the cache."""
        if s.is_reusable:
            self._commit(s, count, end)
        if end == len(s.ids):
            s.cache.key = b""
            s.cache.shared_tokens.clear()

    def _commit(self, s: Sequence, count: int, end: int) -> None:
        """Commit the tokens that just ran to the prefix cache.

        This happens at checkpoints, at the end of the prompt and after whole blocks of an answer.
        """
        pool, allocation = self.pool, s.cache.allocation
        assert allocation is not None
        if end in s.cache.checkpoints:
            pool.checkpoint(allocation, s.key_to(end))
        elif end - count < s.n_prompt <= end:
            pool.commit(allocation, s.key_to(end))
        elif end < len(s.ids) and not pool.recurrent:  # whole blocks, for prompts that wait
            pool.commit(allocation, s.key_to(end // pool.block_tokens * pool.block_tokens))

    def preempt(self, s: Sequence, n_bytes_copied: int) -> None:
        """Preempt a running sequence; swap its cache to host memory if recomputing is slower.

        n_bytes_copied: host memory that copies of other sequences take. Raises the error of the
        device if copying fails, and leaves the sequence unchanged then.
        """
        allocation = s.cache.allocation
        assert allocation is not None
        n_bytes = self.pool.allocation_bytes(allocation)
        has_room = n_bytes_copied + n_bytes <= self.swap_bytes
        if s.is_reusable and not s.is_read and has_room and self.rates.swap_pays(s.n_run, n_bytes):
            begin = time.perf_counter()
            try:
                s.cache.swapped = self.pool.swap_out(allocation, s.n_run)
                self.rates.copied(n_bytes, time.perf_counter() - begin)
            except MemoryError:  # the host has no memory left, so the sequence is recomputed
                pass
        self.requeue(s)
        s.n_preempted += 1

    def requeue(self, s: Sequence, keep: bool = True) -> None:
        """Move a sequence back to the queue. keep: leave its tokens in the prefix cache."""
        self.release(s, keep)
        s.n_run = 0
        if s.request.readout is not None and s.is_read:
            s.request.readout.reset()
            s.n_read = 0
        s.renew_key()

    def restart(self, s: Sequence) -> None:
        """Discard the cached prefix and swapped copy of a waiting sequence with a changed text."""
        s.cache.prefix_hit, s.cache.swapped = None, None
        s.renew_key()
        s.cache.shared_tokens.clear()

    def release(self, s: Sequence, keep: bool = True) -> None:
        """Free everything that a sequence holds. keep: leave its tokens in the prefix cache."""
        if s.cache.fetch is not None:
            s.cache.fetch.cancel()
        if s.cache.allocation is not None:
            key = s.key_to(s.n_run) if keep and s.is_reusable else None
            self.pool.release(s.cache.allocation, key)
            s.cache.allocation = None
