"""The batches of a server: one runs at a time, the oldest first, at the lowest priority.

A row that was in flight when the server stopped runs again after the restart; see `Journal`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.types import ASGIApp

from zinc.core.errors import ZincError
from zinc.server.batch.journal import Journal
from zinc.server.batch.rows import Row
from zinc.server.batch.run import BatchRun
from zinc.server.batch.store import ENDED, BatchStore, Record, owner, owner_id, shown
from zinc.server.errors import ApiError
from zinc.server.http import in_process
from zinc.server.http.in_process import Reply
from zinc.server.http.responses import stop

log = logging.getLogger("zinc.server")

PRIORITY = -100  # the lowest that a request can have


class _StorageFullError(Exception):
    """The contents of the store have reached their limit."""


class BatchQueue:
    """The batches of `store`, run in the background.

    app: answers their rows. api_keys: the keys of the server; batches whose key is no longer one of
    them wait. in_flight: most rows at a time. max_bytes: largest row. ready: returns when the first
    model is loaded.
    """

    def __init__(
        self,
        store: BatchStore,
        app: ASGIApp,
        api_keys: tuple[str, ...],
        in_flight: int,
        max_bytes: int,
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        self.store = store
        self._app, self._ready = app, ready
        self._in_flight, self._max_bytes = in_flight, max_bytes
        self._keys: Mapping[str, str] = {owner_id(key): key for key in api_keys} or {"": ""}
        self._added = asyncio.Event()
        self._run: BatchRun | None = None
        self._running: tuple[str, asyncio.Task[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to run batches, those of an earlier process first."""
        self._task = asyncio.create_task(self._run_all())

    async def close(self) -> None:
        """Stop the queue. The next server with the same folder resumes the running batch."""
        if self._task is not None:
            await stop([self._task])
        self.store.close()

    def add(self) -> None:
        """Look for new batches in the store."""
        self._added.set()

    def cancel(self, batch: Record) -> None:
        """Cancel a batch; answers that it has so far are kept. Raises ApiError 409 if it ended."""
        if batch["status"] in ENDED:
            what = f"the batch is {batch['status']}"
            raise ApiError(409, what, "only a batch that runs or waits can be cancelled")
        if batch["status"] != "cancelling":
            self.store.set_status(batch, "cancelling")
        if self._running is not None and self._running[0] == batch["id"]:
            self._running[1].cancel()
        self.add()

    def describe(self, batch: Record) -> Record:
        """Return a batch as clients see it, with the progress of a run."""
        if self._run is not None and self._running and self._running[0] == batch["id"]:
            _count(batch, self._run)
        return shown(batch)

    async def _run_all(self) -> None:
        with contextlib.suppress(ZincError):  # the first model has failed; others may not
            await self._ready()
        while True:
            self._added.clear()
            waiting = [each for each in self.store.unfinished() if owner(each) in self._keys]
            for batch in waiting[:1]:
                try:
                    await self._run_one(batch)
                except Exception:
                    log.exception("batch %s failed", batch["id"])
                    with contextlib.suppress(OSError):  # of a full disk
                        self._fail(batch, "internal_error", "the server's log has the cause")
            if not waiting:
                await self._added.wait()

    async def _run_one(self, batch: Record) -> None:
        """Run a batch to its end. If this is cancelled, a later run resumes the batch."""
        store, id = self.store, batch["id"]
        try:
            if batch["status"] in ("validating", "in_progress"):
                work = asyncio.create_task(self._rows(batch))
                self._running = (id, work)
                try:
                    await asyncio.wait([work])
                finally:
                    await stop([work])
                if not work.cancelled():
                    work.result()
            if batch["status"] in ENDED:
                return
            if batch["status"] == "in_progress":
                store.set_status(batch, "finalizing")
            store.add_outputs(batch, await asyncio.to_thread(store.split_journal, batch))
            is_cancelled = batch["status"] == "cancelling"  # also while the journal was split
            store.set_status(batch, "cancelled" if is_cancelled else "completed")
            store.remove_journal(batch)
        except _StorageFullError:
            store.add_outputs(batch, await asyncio.to_thread(store.split_journal, batch))
            self._fail(
                batch,
                "storage_full",
                f"the server keeps at most {store.max_bytes} bytes of files; delete some",
            )
        finally:
            self._run = self._running = None

    async def _rows(self, batch: Record) -> None:
        store = self.store
        key = self._keys[owner(batch)]
        headers = [(b"authorization", b"Bearer " + key.encode())] if key else []

        async def send(row: Row) -> Reply:
            if store.used_bytes >= store.max_bytes:
                raise _StorageFullError
            return await in_process.post(self._app, row.url, row.body, headers, PRIORITY)

        # Reading the journal of an earlier process may take seconds.
        with await asyncio.to_thread(Journal, store.journal_path(batch["id"])) as journal:
            self._run = run = BatchRun(
                store.content_path(batch["input_file_id"]),
                journal,
                send,
                self._in_flight,
                self._max_bytes,
                batch["endpoint"],
            )
            if batch["status"] == "validating":
                store.set_status(batch, "in_progress")
            try:
                await run.run()
            finally:
                _count(batch, run)
                store.save(batch)
        if run.counts.total == 0:
            self._fail(batch, "empty_file", "the input file has no rows")

    def _fail(self, batch: Record, code: str, message: str) -> None:
        error = {"code": code, "message": message, "param": None, "line": None}
        batch["errors"] = {"object": "list", "data": [error]}
        self.store.set_status(batch, "failed")
        self.store.remove_journal(batch)


def _count(batch: Record, run: BatchRun) -> None:
    counts = run.counts
    batch["request_counts"] = {
        "total": counts.total,
        "completed": counts.done - counts.failed,
        "failed": counts.failed,
    }
