"""Prefixes of prompts that other processes have run: fetch their cache files from a store.

    begin → thread: find the files, compare the times, read the files → advance: into the tree

A file is named by the digest of the text that it ends, so the names of a prompt's files are known
without asking. A prompt is looked up once, while it waits. Its files are fetched if that is likely
to take less time than running the tokens; both rates are measured. Tokens whose files are missing,
damaged or late are computed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from io import BytesIO

from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError, MemoryLimitError
from zinc.kv import cache_file
from zinc.kv.cache_file import BLOCK, STATE, DamagedError
from zinc.kv.disk import STEP_BYTES, DiskCache
from zinc.kv.node import TOKEN_BYTES, Node, digest_of, root_digest, text_digest
from zinc.kv.pool import CachePool
from zinc.kv.recovery import check_header, restore_block, restore_state

log = logging.getLogger("zinc.cache")

_THREADS = 2
_AHEAD = 32  # files that are read before they are in the tree
_WAIT_S = 0.02
# A fetch that takes longer than running the tokens, and than this, is given up.
_PATIENCE_S = 1.0
_WEIGHT = 0.2  # of a new measurement in the moving average


@dataclass(slots=True)
class FetchRates:
    """Measured costs of fetching. find_s: to find the files of a prompt. byte_s: to read a byte."""

    find_s: float = 2e-3
    byte_s: float = 1e-9

    def found(self, seconds: float) -> None:
        """Record how long it took to find files."""
        self.find_s += _WEIGHT * (seconds - self.find_s)

    def fetched(self, n_bytes: int, seconds: float) -> None:
        """Record how long `n_bytes` took."""
        if n_bytes:
            self.byte_s += _WEIGHT * (seconds / n_bytes - self.byte_s)


@dataclass(frozen=True, slots=True)
class _File:
    """A file that may exist: of block number `index` of a prompt, or of a state in it.

    end: tokens of the prompt up to the end of the file's text.
    """

    name: str
    index: int
    end: int


@dataclass(slots=True, eq=False)
class Fetch:
    """An asynchronous fetch of the prefix of one prompt from a store.

    namespace: of the prompt. n_cached: tokens that the tree has. path: nodes of the blocks that it
    has, without the root. blocks: files of the next full blocks, in order. states, tails: files of
    checkpoints, and of the beginnings of blocks that end there. token_s: seconds to run a token.
    is_done: nothing more will come.
    """

    namespace: bytes
    n_cached: int
    path: list[Node]
    blocks: list[_File] = field(default_factory=list)
    states: list[_File] = field(default_factory=list)
    tails: list[_File] = field(default_factory=list)
    token_s: float | None = None
    is_done: bool = False
    n_bytes: int = 0
    seconds: float = 0.0
    _deadline: float | None = None
    _is_read: bool = False
    _ready: queue.Queue[tuple[_File, bytes]] = field(default_factory=lambda: queue.Queue(_AHEAD))

    def cancel(self) -> None:
        """Stop the fetch: ignore files that have not been put into the tree yet."""
        self.is_done = True

    # -- in a thread of the fetcher ---------------------------------------------------------------

    def choose(self, found: Collection[str], recurrent: bool) -> list[_File]:
        """Return the files to read, parents first. found: names of files that exist."""
        first = len(self.path)
        run = []
        for file in self.blocks:
            if file.name not in found:
                break
            run.append(file)
        if not recurrent:
            return run
        tails = {file.end: file for file in self.tails if file.name in found}
        for state in sorted(self.states, key=lambda file: -file.end):
            if state.name not in found:
                continue
            if state.index < first + len(run):  # its whole block exists
                return [*run[: max(0, state.index + 1 - first)], state]
            if state.index == first + len(run) and state.end in tails:
                return [*run, tails[state.end], state]
        return []

    def pays(self, files: list[_File], n_bytes: int, rates: FetchRates) -> bool:
        """Return whether reading `files` is likely to be faster than running their tokens."""
        if not files or files[-1].end <= self.n_cached:
            return False
        if self.token_s is None:  # nothing has run yet
            return True
        run_s = (files[-1].end - self.n_cached) * self.token_s
        self._deadline = time.monotonic() + max(run_s, _PATIENCE_S)
        return n_bytes * rates.byte_s < run_s

    def put(self, file: _File, data: bytes, seconds: float) -> None:
        """Hand a file to the engine's thread, once there is room."""
        self.n_bytes += len(data)
        self.seconds += seconds
        while not self.is_done:
            try:
                self._ready.put((file, data), timeout=_WAIT_S)
                return
            except queue.Full:
                continue

    def end(self) -> None:
        """Mark the queue as complete: no more files follow."""
        self._is_read = True

    # -- in the engine's thread -------------------------------------------------------------------

    def next(self) -> tuple[_File, bytes] | None:
        """Return the next file, None if none is ready now."""
        is_read = self._is_read  # read before the queue: no file is added later
        try:
            return self._ready.get_nowait()
        except queue.Empty:
            is_late = self._deadline is not None and time.monotonic() > self._deadline
            self.is_done = self.is_done or is_read or is_late
            return None


class PrefixFetcher:
    """Fetcher of prefixes that the store of `files` has and the prefix tree of a pool lacks.

    Only the engine's thread may use it.
    """

    def __init__(self, files: DiskCache, pool: CachePool) -> None:
        self.rates = FetchRates()
        self._files, self._store, self._pool = files, files.store, pool
        self._fetches: list[Fetch] = []
        self._threads = ThreadPoolExecutor(_THREADS, "zinc-fetch")
        self._changed = threading.Event()
        self._has_warned = False

    @property
    def is_busy(self) -> bool:
        """Whether anything is being fetched."""
        return bool(self._fetches)

    def begin(
        self,
        key: bytes,
        limit: int,
        namespace: bytes,
        ends: Sequence[int],
        token_s: float | None,
    ) -> Fetch:
        """Start to fetch the part of the first `limit` tokens of a prompt that the tree lacks.

        key: token ids of the prompt, from `key_of`. ends: where a recurrent model may have left a
        checkpoint. token_s: seconds to run a token, None if unknown.
        """
        pool, width = self._pool, self._pool.block_tokens * TOKEN_BYTES
        match = pool.tree.find(key, limit, namespace)
        fetch = Fetch(namespace, match.n_tokens, [], token_s=token_s)
        n_missing = limit - match.n_tokens
        if n_missing <= 0 or n_missing * (token_s or 1) < self.rates.find_s:
            fetch.cancel()
            return fetch
        pool.tree.touch(match)
        node = pool.tree.root(root_digest(namespace))
        digests = [node.digest]
        for i in range(limit // pool.block_tokens):
            tokens = key[i * width : (i + 1) * width]
            child = node.children.get(tokens) if i == len(fetch.path) else None
            if child is not None:
                fetch.path.append(child)
                node = child
                digests.append(digest_of(child))
            else:
                digests.append(text_digest(digests[-1], tokens))
                end = (i + 1) * pool.block_tokens
                fetch.blocks.append(_File(digests[-1].hex() + BLOCK, i, end))
        for end in ends:
            if match.n_tokens < end <= limit:
                i = (end - 1) // pool.block_tokens
                name = text_digest(digests[i], key[i * width : end * TOKEN_BYTES]).hex()
                fetch.states.append(_File(name + STATE, i, end))
                if end % pool.block_tokens:
                    fetch.tails.append(_File(name + BLOCK, i, end))
        if not (fetch.states if pool.recurrent else fetch.blocks):
            fetch.cancel()
            return fetch
        self._fetches.append(fetch)
        self._threads.submit(self._read, fetch)
        return fetch

    def advance(self) -> None:
        """Insert fetched files into the tree, about `STEP_BYTES` a call."""
        self._changed.clear()
        budget = STEP_BYTES
        for fetch in list(self._fetches):
            while budget > 0 and not fetch.is_done and (ready := fetch.next()) is not None:
                file, data = ready
                budget -= len(data)
                begin = time.perf_counter()
                try:
                    self._insert(fetch, file, data)
                except DamagedError as error:
                    log.warning("%s in %s is ignored: %s", file.name, self._store, error)
                    self._files.discard(file.name)
                    fetch.cancel()
                except (MemoryLimitError, DeviceError, MemoryError):
                    fetch.cancel()  # there is no room
                fetch.seconds += time.perf_counter() - begin
            if fetch.is_done:
                self._fetches.remove(fetch)
                self.rates.fetched(fetch.n_bytes, fetch.seconds)

    def wait(self) -> None:
        """Wait until something has arrived, for a moment at most."""
        self._changed.wait(_WAIT_S)

    def close(self) -> None:
        """Give up all fetches and end the threads."""
        for fetch in self._fetches:
            fetch.cancel()
        self._fetches.clear()
        self._threads.shutdown(cancel_futures=True)

    def _insert(self, fetch: Fetch, file: _File, data: bytes) -> None:
        """Put a file into the tree. Raises DamagedError, MemoryLimitError or DeviceError."""
        pool, tree = self._pool, self._pool.tree
        source = BytesIO(data)
        header = cache_file.read_header(source, self._store.key)
        check_header(header, file.name, pool)
        parent = fetch.path[file.index - 1] if file.index else tree.root(header.parent)
        if file.index and parent not in tree:
            fetch.cancel()  # it was evicted meanwhile
            return
        size = len(data) - source.tell()
        if header.is_state:
            while pool.slots.n_free < 2 and tree.evict_state():
                pass
            restore_state(pool, source, header, parent)
            self._files.adopt(header, size)
            return
        node = tree.child(parent, header.tokens)
        if node is None:
            for group in header.groups:
                pool.reserve(group, 1)
            if file.index and parent not in tree:
                fetch.cancel()
                return
            node = restore_block(pool, source, header, parent)
            if node is None:  # pragma: no cover - the tree was asked before
                fetch.cancel()
                return
            self._files.adopt(header, size)
            pool.stats.fetched_tokens += node.n_tokens
        fetch.path.append(node)

    # -- in a thread ----------------------------------------------------------------------------

    def _read(self, fetch: Fetch) -> None:
        """Find and read the files of a prompt, if that is likely to pay."""
        try:
            self._read_files(fetch)
        except Exception as error:
            if not self._has_warned:
                log.warning("prefixes cannot be fetched from %s: %s", self._store, error)
            self._has_warned = True
        finally:
            fetch.end()
            self._changed.set()

    def _read_files(self, fetch: Fetch) -> None:
        every = (*fetch.blocks, *fetch.states, *fetch.tails)
        begin = time.perf_counter()
        found = self._store.find([file.name for file in every])
        self.rates.found(time.perf_counter() - begin)
        files = fetch.choose(found, self._pool.recurrent)
        entries = [found[file.name] for file in files]
        if not fetch.pays(files, sum(entry.n_bytes for entry in entries), self.rates):
            return
        begin = time.perf_counter()
        contents = self._store.read(entries)
        for file, data in zip(files, contents, strict=False):
            if fetch.is_done:
                return
            fetch.put(file, data, time.perf_counter() - begin)
            self._changed.set()
            begin = time.perf_counter()
