"""The prefix cache on disk, so that a conversation goes on after a restart or a crash.

What the tree gains is written behind: the engine hands over a few megabytes a step, as copies, and
a thread writes them, a file a block (zinc.kv.piece). A process may be killed at any time; what was
written by then is found again. A folder belongs to one `key` (model, plan, layout, version). What
does not fit any more, is damaged or foreign is left out with a warning: a cache may forget, and
never lies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zinc.core.errors import DeviceError, RequestError
from zinc.kv import piece
from zinc.kv.node import ROOT, TOKEN_BYTES, Node
from zinc.kv.piece import BLOCK, STATE, Head, piece_name
from zinc.kv.pool import CachePool
from zinc.kv.recovery import File, Recovery, block_views

log = logging.getLogger("zinc.cache")

# What a step may copy: about a millisecond. A piece is never divided.
STEP_BYTES = 4 << 20
# Copies that wait for the disk; with more of them the engine stops handing over.
MAX_WAITING_BYTES = 64 << 20
# After a failure nothing is written for a while: at first this long, then twice as long each time.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 600.0


def check_folder(folder: Path) -> None:
    """Create `folder` if it is missing; raises RequestError unless files can be written to it."""
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
    """Work of the writer thread. `write`: the file that it writes, and the node of the tree."""

    future: Future[Exception | None]
    n_bytes: int = 0
    write: tuple[str, Node] | None = None


class DiskCache:
    """The files of one pool in `folder`/`key`; at most `limit_bytes` of them, the oldest go first.

    Not thread-safe: it belongs to the thread that runs the engine. Without a limit it keeps as much
    as the pool can. After a failure to write (no space, no permission) or to read from the device
    it warns once and pauses; then it writes what was missed, or pauses for longer.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        pool: CachePool,
        limit_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.key = folder / key, key
        self._pool = pool
        self._limit_bytes = pool.total_bytes if limit_bytes is None else limit_bytes
        self._files: OrderedDict[str, File] = OrderedDict()  # least recently used first
        self._n_bytes = 0
        self._children: Counter[bytes] = Counter()  # files by the name of their parent
        self._tails: dict[bytes, dict[bytes, str]] = {}  # by parent and tokens
        self._jobs: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._lost: deque[str] = deque()  # files that somebody else has removed
        self._clock = clock
        self._error: Exception | None = None  # why nothing is written now; the writer sets it too
        self._pause_s = 0.0  # the length of the latest pause; 0 after a write that succeeded
        self._resume_at = 0.0
        self._writer = ThreadPoolExecutor(1, "zinc-cache")
        self._touched = pool.tree.watch()

    # -- writing behind -------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Return whether anything can be written now, rather than after the pause."""
        self._settle()
        is_paused = self._error is not None and self._clock() < self._resume_at
        return bool(self._jobs or (self._touched and not is_paused))

    def collect(self, limit_bytes: int = STEP_BYTES) -> None:
        """Hand over what the tree gained, parents first: about `limit_bytes` of it."""
        self._settle()
        while self._lost:  # to be written again when their text is used next
            self._drop(self._lost.popleft())
        if self._error is not None and not self._resume():
            self._forget_evicted()
            return
        taken, used = 0, list[str]()
        while self._touched and taken < limit_bytes and self._waiting_bytes < MAX_WAITING_BYTES:
            node, _ = self._touched.popitem(last=False)
            try:
                taken += self._take(node, used)
            except (DeviceError, MemoryError) as error:
                self._pause(error, [node])
                break
        if used:
            self._do(lambda: self._refresh(used))
        self._forget()

    def wait(self) -> None:
        """Wait for the oldest write that is under way, if there is one."""
        if self._jobs:
            self._jobs[0].future.result()
            self._settle()

    def flush(self) -> None:
        """Write everything that is not on disk yet, unless writing is paused."""
        while self.behind:
            self.collect()
            self.wait()

    def close(self) -> None:
        """Write what is not on disk yet, also during a pause, and end the writer thread."""
        while self._jobs:
            self.wait()
        self._resume_at = 0.0
        self._resume()
        self.flush()
        self._writer.shutdown()

    def _take(self, node: Node, used: list[str]) -> int:
        """Hands over what is new of a node; returns its bytes."""
        pool = self._pool
        is_tail = node.n_tokens < pool.block_tokens
        if node not in pool.tree:
            return 0
        parent, taken = _digest(node.parent), 0
        is_first = node.depth == 1
        groups = tuple(g for g, block in enumerate(node.blocks) if block >= 0)
        name = piece_name(parent, node.tokens, BLOCK)
        known = self._files.get(name)
        if known is not None and set(groups) <= set(known.head.groups):
            self._files.move_to_end(name)
            used.append(name)
        else:
            head = Head(self.key, parent, node.tokens, groups, is_first=is_first)
            taken += self._put(node, head, block_views(pool, groups, node.blocks))
            self._replace_tails(parent, node.tokens, is_tail)
        for offset, slot in sorted(node.states.items()):
            tokens = node.tokens[: offset * TOKEN_BYTES]
            name = piece_name(parent, tokens, STATE)
            if name in self._files:
                self._files.move_to_end(name)
                used.append(name)
            else:
                head = Head(self.key, parent, tokens, is_state=True, is_first=is_first)
                taken += self._put(node, head, pool.copier.state_views(slot))
        return taken

    def _put(self, node: Node, head: Head, views: Iterable[npt.NDArray[np.uint8]]) -> int:
        data = b"".join(view.data for view in views)
        self._add(head, len(data))

        def write() -> None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            piece.write(self.folder, self.key, head, data)

        self._do(write, len(data), (head.name, node))
        return len(data)

    def _replace_tails(self, parent: bytes, tokens: bytes, is_tail: bool) -> None:
        """Drops the files of tails that a longer text has taken the place of."""
        tails = self._tails.setdefault(parent, {}) if is_tail else self._tails.get(parent, {})
        for shorter in [t for t in tails if tokens.startswith(t) and t != tokens]:
            self._drop(tails.pop(shorter))
        if is_tail:
            tails[tokens] = piece_name(parent, tokens, BLOCK)

    def _add(self, head: Head, size: int) -> None:
        old = self._files.pop(head.name, None)
        self._files[head.name] = File(size, head)
        self._n_bytes += size - (old.size if old else 0)
        self._children[head.parent] += old is None

    def _drop(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is None:
            return
        self._n_bytes -= file.size
        parent, tokens = file.head.parent, file.head.tokens
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
        if not file.head.is_state and parent in self._tails:
            self._tails[parent].pop(tokens, None)
            if not self._tails[parent]:
                del self._tails[parent]
        self._do(lambda: self._remove(name), always=True)

    def _forget(self) -> None:
        """Drops the least recently used files until the rest is within the limit."""
        while self._n_bytes > self._limit_bytes:
            # Without its parent a file is of no use, so those go first that nobody needs.
            self._drop(next(n for n in self._files if not self._is_parent(n)))

    def _is_parent(self, name: str) -> bool:
        return name.endswith(BLOCK) and bytes.fromhex(name.removesuffix(BLOCK)) in self._children

    def _refresh(self, names: Iterable[str]) -> None:
        """Set the times of files to now: on disk, their order is that of their last use."""
        for name in names:
            try:
                os.utime(self.folder / name)
            except FileNotFoundError:  # another process found it too old, or the folder is gone
                self._lost.append(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(NotADirectoryError):
            (self.folder / name).unlink(missing_ok=True)

    # -- the writer thread and its failures -----------------------------------------------------

    def _do(
        self,
        job: Callable[[], None],
        n_bytes: int = 0,
        write: tuple[str, Node] | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Have the writer run `job`; during a pause only if `always`, as that frees space."""
        self._waiting_bytes += n_bytes
        self._jobs.append(_Job(self._writer.submit(self._try, job, always), n_bytes, write))

    def _try(self, job: Callable[[], None], always: bool) -> Exception | None:
        if self._error is not None and not always:
            return self._error
        try:
            job()
        except OSError as error:
            self._error = error  # so that the jobs behind it do not try as well
            return error
        return None

    def _settle(self) -> None:
        """Take note of the jobs that are done."""
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
                self._lost.append(name)
                failed.append(node)
            elif self._pause_s and self._error is None:
                log.warning("the prefix cache is written to %s again", self.folder)
                self._pause_s = 0.0
        if cause is not None:
            self._pause(cause, failed)

    def _pause(self, error: Exception, nodes: list[Node]) -> None:
        """Write nothing for a while, and `nodes` before anything else then."""
        for node in reversed(nodes):
            self._touched[node] = None
            self._touched.move_to_end(node, last=False)
        if self._resume_at > self._clock():
            return  # of the jobs that were under way when the pause began
        if not self._pause_s:
            log.warning(
                "the prefix cache cannot be written to %s now and is tried again later: %s",
                self.folder,
                error,
            )
        self._error = error
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._resume_at = self._clock() + self._pause_s

    def _resume(self) -> bool:
        """End the pause if it is over and nothing of before is under way."""
        if self._jobs or self._clock() < self._resume_at:
            return False
        self._error = None
        return True

    def _forget_evicted(self) -> None:
        """Drop nodes that have left the tree, so that a long pause takes no memory."""
        if len(self._touched) > 2 * len(self._pool.tree) + 64:
            for node in [n for n in self._touched if n not in self._pool.tree]:
                del self._touched[node]

    # -- reading --------------------------------------------------------------------------------

    def load(self) -> int:
        """Restore what was written, as far as there is room; return the number of tokens."""
        files, n_tokens = Recovery(self.folder, self.key, self._pool).run()
        for name, file in files.items():
            head = file.head
            self._add(head, file.size)
            if not head.is_state and len(head.tokens) < self._pool.block_tokens * TOKEN_BYTES:
                self._tails.setdefault(head.parent, {})[head.tokens] = name
        self._touched.clear()
        self._forget()
        return n_tokens


def _digest(node: Node | None) -> bytes:
    """What names the text up to the end of a node."""
    path: list[Node] = []
    while node is not None and node.parent is not None and not node.digest:
        path.append(node)
        node = node.parent
    digest = (node.digest if node is not None else b"") or ROOT
    for below in reversed(path):
        digest = below.digest = piece.chain(digest, below.tokens)
    return digest
