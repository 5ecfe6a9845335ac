"""Run the rows of a batch: a few at a time through the endpoints, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import field
from pathlib import Path

from zinc.core.dataclass import dataclass
from zinc.server.batch import rows
from zinc.server.batch.journal import Journal, digest
from zinc.server.batch.rows import Row, RowError
from zinc.server.http.in_process import Reply
from zinc.server.http.responses import stop

Send = Callable[[Row], Awaitable[Reply]]

_BUSY, _UNAVAILABLE = 429, 503
_MAX_UNAVAILABLE = 60  # attempts of a row while the model cannot answer
_MAX_WAIT_S = 10.0
_LARGE_BYTES = 1 << 20
_LINES_PER_TURN = 1000  # lines without a request after which other tasks run


@dataclass(slots=True)
class Counts:
    """The progress of a batch. Rows of earlier runs are included, their tokens are not."""

    total: int = 0
    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def count_rows(source: Path, max_bytes: int) -> int:
    """Return the number of rows in a file; see `read_lines`."""
    return sum(1 for _ in rows.read_lines(source, max_bytes))


def is_finished(source: Path, journal: Journal, max_bytes: int) -> bool:
    """Return whether the output has all rows of a file; see `read_lines`."""
    seen: set[bytes] = set()
    lines = rows.read_lines(source, max_bytes)
    return all(_missing(number, line, journal, seen) is None for number, line in lines)


@dataclass(slots=True)
class BatchRun:
    """A batch that runs.

    source: the file with the requests. journal: the output; rows that it has are skipped. send:
    sends a row to its endpoint. in_flight: most rows at a time. max_bytes: longest line of the
    source. endpoint: the only url that rows may have (None: any). counts: the progress.
    """

    source: Path
    journal: Journal
    send: Send
    in_flight: int
    max_bytes: int
    endpoint: str | None = None
    counts: Counts = field(default_factory=Counts)
    _seen: set[bytes] = field(default_factory=set)

    async def run(self) -> None:
        """Run all rows. Raises OSError if a file cannot be read or written.

        After a cancellation, rows in flight are not in the output, and a later run answers them.
        """
        counts = self.counts
        counts.total = await asyncio.to_thread(count_rows, self.source, self.max_bytes)
        counts.done, counts.failed = self.journal.n_done, self.journal.n_failed
        tasks: set[asyncio.Task[None]] = set()
        try:
            for turn, (number, line) in enumerate(rows.read_lines(self.source, self.max_bytes)):
                if turn % _LINES_PER_TURN == 0:
                    await asyncio.sleep(0)
                row = await self._next(number, line)
                if row is None:
                    continue
                tasks.add(asyncio.create_task(self._answer(row)))
                if len(tasks) >= self.in_flight:
                    tasks = await _first_done(tasks)
            while tasks:
                tasks = await _first_done(tasks)
        finally:
            await stop(list(tasks))

    async def _next(self, number: int, line: bytes | None) -> Row | None:
        """Return the request in a line, or None if it is done or has no valid request."""
        arguments = number, line, self.journal, self._seen, self.endpoint
        if line is not None and len(line) > _LARGE_BYTES:
            found = await asyncio.to_thread(_missing, *arguments)
        else:
            found = _missing(*arguments)
        if isinstance(found, RowError):
            self._write(rows.error_line(found.custom_id, number, found.error), failed=True)
            return None
        return found

    async def _answer(self, row: Row) -> None:
        reply = await answered(row, self.send)
        usage = reply.body.get("usage") if isinstance(reply.body, dict) else None
        if usage:
            self.counts.prompt_tokens += usage.get("prompt_tokens", 0)
            self.counts.completion_tokens += usage.get("completion_tokens", 0)
        self._write(rows.answer_line(row.custom_id, reply), failed=reply.status != 200)

    def _write(self, line: bytes, failed: bool) -> None:
        self.journal.append(line)
        self.counts.done += 1
        self.counts.failed += failed


def _missing(
    number: int,
    line: bytes | None,
    journal: Journal,
    seen: set[bytes],
    endpoint: str | None = None,
) -> Row | RowError | None:
    """Return the request in a line or the error of the line, or None if the output has the row.

    seen: digests of the custom ids of earlier lines; that of this line is added.
    """
    if journal.has_line(number):
        return None
    try:
        found: Row | RowError = rows.parse_row(line, endpoint)
    except RowError as error:
        found = error
    if not found.custom_id:
        return found
    if (key := digest(found.custom_id)) in seen:
        return RowError(rows.duplicate(found.custom_id))
    seen.add(key)
    return None if journal.has_id(found.custom_id) else found


async def answered(row: Row, send: Send) -> Reply:
    """Return the reply to a row; send it again while the server is busy."""
    reply = await send(row)
    n_unavailable = 0
    while reply.status in (_BUSY, _UNAVAILABLE):
        n_unavailable += reply.status == _UNAVAILABLE
        if n_unavailable == _MAX_UNAVAILABLE:
            break
        await asyncio.sleep(min(_MAX_WAIT_S, reply.retry_after_s))
        reply = await send(row)
    return reply


async def _first_done(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until a task is done; return the others. Raises what the task raised."""
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return left
