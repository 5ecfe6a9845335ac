"""The prefix cache on disk, which survives restarts and crashes.

New nodes of the tree are written in the background: in each step the engine copies a few megabytes,
and a thread writes them, one file a block (zinc.kv.cache_file). If the process is killed, the files
written so far are restored at the next start. Files that do not fit in memory, are damaged or
foreign are ignored with a warning. The files lie in a store (zinc.kv.store): a folder, or memory
that several processes share.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.core.errors import DeviceError, RequestError
from zinc.kv.cache_file import BLOCK, STATE, Header, file_name
from zinc.kv.node import TOKEN_BYTES, Node, digest_of
from zinc.kv.pool import CachePool
from zinc.kv.recovery import CacheFile, block_views
from zinc.kv.store import Store

log = logging.getLogger("zinc.cache")

# Bytes copied a step, in about a millisecond. The data of one file is never divided.
STEP_BYTES = 4 << 20
# Bytes that wait for the writer; beyond, the engine copies no more.
MAX_WAITING_BYTES = 64 << 20
# After a failure writing pauses; the pause doubles with each further failure.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 600.0


def check_folder(folder: Path) -> None:
    """Create `folder` if it is missing. Raises RequestError unless files can be written to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        raise RequestError(
            f"the prefix cache cannot be kept in {folder}",
            "it is not a folder" if is_file else error.strerror or str(error),
            "choose a folder that can be written, or run without one",
        ) from error


@dataclass(slots=True)
class _Job:
    """A task of the writer thread; `write` is the name of the file it writes, and its node."""

    future: Future[Exception | None]
    n_bytes: int = 0
    write: tuple[str, Node] | None = None


class DiskCache:
    """The files of one pool in a store.

    The least recently used files are removed when there are more than `limit_bytes` (by default the
    size of the pool). Not thread-safe: only the engine's thread may use it. If a write fails (no
    space, no permission), or a copy from the device, the cache warns once and pauses. After the
    pause it writes the files that it skipped. If that fails too, the next pause is longer.
    """

    def __init__(
        self,
        store: Store,
        pool: CachePool,
        limit_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._pool = pool
        self._limit_bytes = pool.total_bytes if limit_bytes is None else limit_bytes
        self._files: OrderedDict[str, CacheFile] = OrderedDict()  # least recently used first
        self._n_bytes = 0
        self._children: Counter[bytes] = Counter()  # number of files by digest of their parent
        self._tails: dict[bytes, dict[bytes, str]] = {}  # names by parent and tokens
        self._jobs: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._missing: deque[str] = (
            deque()
        )  # names of files that were not written or have disappeared
        self._clock = clock
        self._error: Exception | None = None  # why writing is paused; the writer sets it too
        self._pause_s = 0.0  # length of the last pause; 0 after a successful write
        self._resume_at = 0.0
        self._writer = ThreadPoolExecutor(1, "zinc-cache")
        self._touched = pool.tree.watch()

    # -- writing --------------------------------------------------------------------------------

    @property
    def has_pending(self) -> bool:
        """Whether anything can be written now rather than after a pause."""
        self._finish_jobs()
        is_paused = self._error is not None and self._clock() < self._resume_at
        return bool(self._jobs or (self._touched and not is_paused))

    def collect(self, limit_bytes: int = STEP_BYTES) -> None:
        """Hand about `limit_bytes` of new data to the writer, parents first."""
        self._finish_jobs()
        while self._missing:  # they are written again when their text is next used
            self._drop(self._missing.popleft())
        if self._error is not None and not self._resume():
            self._forget_evicted()
            return
        taken, used = 0, list[str]()
        while self._touched and taken < limit_bytes and self._waiting_bytes < MAX_WAITING_BYTES:
            node, _ = self._touched.popitem(last=False)
            try:
                taken += self._hand_over(node, used)
            except (DeviceError, MemoryError) as error:
                self._pause(error, [node])
                break
        if used:
            self._submit(lambda: self._refresh(used))
        self._enforce_limit()

    def wait(self) -> None:
        """Wait for the oldest pending write, if there is one."""
        if self._jobs:
            self._jobs[0].future.result()
            self._finish_jobs()

    def flush(self) -> None:
        """Write everything that is not yet on disk, unless writing is paused."""
        while self.has_pending:
            self.collect()
            self.wait()

    def close(self) -> None:
        """Write what is not yet on disk, even during a pause, and end the writer thread."""
        while self._jobs:
            self.wait()
        self._resume_at = 0.0
        self._resume()
        self.flush()
        self._writer.shutdown()

    def _hand_over(self, node: Node, used: list[str]) -> int:
        """Hand the new data of a node to the writer; return its size in bytes."""
        pool = self._pool
        is_tail = node.n_tokens < pool.block_tokens
        if node not in pool.tree:
            return 0
        parent, taken = digest_of(node.parent), 0
        is_first = node.depth == 1
        groups = tuple(g for g, block in enumerate(node.blocks) if block >= 0)
        name = file_name(parent, node.tokens, BLOCK)
        known = self._files.get(name)
        if known is not None and set(groups) <= set(known.header.groups):
            self._files.move_to_end(name)
            used.append(name)
        else:
            header = Header(self.store.key, parent, node.tokens, groups, is_first=is_first)
            taken += self._write(node, header, block_views(pool, groups, node.blocks))
            self._replace_tails(parent, node.tokens, is_tail)
        for offset, slot in sorted(node.states.items()):
            tokens = node.tokens[: offset * TOKEN_BYTES]
            name = file_name(parent, tokens, STATE)
            if name in self._files:
                self._files.move_to_end(name)
                used.append(name)
            else:
                header = Header(self.store.key, parent, tokens, is_state=True, is_first=is_first)
                taken += self._write(node, header, pool.copier.state_views(slot))
        return taken

    def _write(self, node: Node, header: Header, views: Iterable[npt.NDArray[np.uint8]]) -> int:
        """Queue a write of a copy of the views to a file; return its size in bytes."""
        data = b"".join(view.data for view in views)
        self._add(header, len(data))

        self._submit(lambda: self.store.write(header, data), len(data), (header.name, node))
        return len(data)

    def _replace_tails(self, parent: bytes, tokens: bytes, is_tail: bool) -> None:
        """Drop the files of tails that the given tokens extend."""
        tails = self._tails.setdefault(parent, {}) if is_tail else self._tails.get(parent, {})
        for shorter in [t for t in tails if tokens.startswith(t) and t != tokens]:
            self._drop(tails.pop(shorter))
        if is_tail:
            tails[tokens] = file_name(parent, tokens, BLOCK)

    def _add(self, header: Header, size: int) -> None:
        """Add a file to the index, as the most recently used one."""
        old = self._files.pop(header.name, None)
        self._files[header.name] = CacheFile(size, header)
        self._n_bytes += size - (old.size if old else 0)
        self._children[header.parent] += old is None

    def _drop(self, name: str) -> None:
        """Remove a file from the index, and queue its deletion."""
        file = self._files.pop(name, None)
        if file is None:
            return
        self._n_bytes -= file.size
        parent, tokens = file.header.parent, file.header.tokens
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
        if not file.header.is_state and parent in self._tails:
            self._tails[parent].pop(tokens, None)
            if not self._tails[parent]:
                del self._tails[parent]
        self._submit(lambda: self.store.remove(name), always=True)

    def _enforce_limit(self) -> None:
        """Drop the least recently used files until the rest is within the limit."""
        while self._n_bytes > self._limit_bytes:
            # A file is useless without its parent, so children go first.
            self._drop(next(n for n in self._files if not self._is_parent(n)))

    def _is_parent(self, name: str) -> bool:
        return name.endswith(BLOCK) and bytes.fromhex(name.removesuffix(BLOCK)) in self._children

    def _refresh(self, names: Iterable[str]) -> None:
        """Mark files as used now; another process may have removed some of them."""
        self._missing.extend(self.store.touch(names))

    # -- the writer thread and its failures -----------------------------------------------------

    def _submit(
        self,
        job: Callable[[], None],
        n_bytes: int = 0,
        write: tuple[str, Node] | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Queue `job` for the writer; during a pause only if `always`, for jobs that free space."""
        self._waiting_bytes += n_bytes
        self._jobs.append(_Job(self._writer.submit(self._try, job, always), n_bytes, write))

    def _try(self, job: Callable[[], None], always: bool) -> Exception | None:
        """Run a job in the writer thread; return its error, or the one that caused a pause."""
        if self._error is not None and not always:
            return self._error
        try:
            job()
        except OSError as error:
            self._error = error  # the following jobs then do not try either
            return error
        return None

    def _finish_jobs(self) -> None:
        """Process the results of finished jobs."""
        failed: list[Node] = []
        cause: Exception | None = None
        while self._jobs and self._jobs[0].future.done():
            job = self._jobs.popleft()
            self._waiting_bytes -= job.n_bytes
            error = job.future.result()
            cause = cause or error
            if job.write is None:
                continue
            name, node = job.write
            if error is not None:
                self._missing.append(name)
                failed.append(node)
            elif self._pause_s and self._error is None:
                log.warning("the prefix cache is written to %s again", self.store)
                self._pause_s = 0.0
        if cause is not None:
            self._pause(cause, failed)

    def _pause(self, error: Exception, nodes: list[Node]) -> None:
        """Pause writing; afterwards `nodes` are written first."""
        for node in reversed(nodes):
            self._touched[node] = None
            self._touched.move_to_end(node, last=False)
        if self._resume_at > self._clock():
            return  # a job that was pending when the pause began
        if not self._pause_s:
            log.warning(
                "the prefix cache cannot be written to %s now and is tried again later: %s",
                self.store,
                error,
            )
        self._error = error
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._resume_at = self._clock() + self._pause_s

    def _resume(self) -> bool:
        """End the pause if its time is over and no job is pending; return whether it ended."""
        if self._jobs or self._clock() < self._resume_at:
            return False
        self._error = None
        return True

    def _forget_evicted(self) -> None:
        """Forget queued nodes that have left the tree, so that a long pause takes no memory."""
        if len(self._touched) > 2 * len(self._pool.tree) + 64:
            for node in [n for n in self._touched if n not in self._pool.tree]:
                del self._touched[node]

    def adopt(self, header: Header, size: int) -> None:
        """Add a file that another process wrote, with `size` bytes of data, to the index."""
        self._add(header, size)

    def discard(self, name: str) -> None:
        """Remove a damaged file from index and store, also if another process wrote it."""
        self._drop(name)
        self._submit(lambda: self.store.discard(name), always=True)

    # -- reading --------------------------------------------------------------------------------

    def load(self) -> int:
        """Restore files as far as there is room; return the number of restored tokens."""
        files, n_tokens = self.store.recover(self._pool)
        for name, file in files.items():
            header = file.header
            self._add(header, file.size)
            if not header.is_state and len(header.tokens) < self._pool.block_tokens * TOKEN_BYTES:
                self._tails.setdefault(header.parent, {})[header.tokens] = name
        self._touched.clear()
        self._enforce_limit()
        return n_tokens
