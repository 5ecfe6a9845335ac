"""Download one file: several parts at a time, resumable, with its SHA-256 checked.

A file gets its name only when all bytes are there and the hash is right. Until then its bytes are
in a `PartialFile`, which the next download of the same file continues.
"""

from __future__ import annotations

import errno
import queue
import re
import threading
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path

from zinc.core.dataclass import dataclass
from zinc.hub.errors import ChecksumError, DownloadError
from zinc.hub.events import OnEvent, Transferred, Verified, Waiting
from zinc.hub.lock import exclusive
from zinc.hub.meter import Meter
from zinc.hub.partial import PartialFile
from zinc.hub.transport import (
    Patience,
    StatusError,
    StoppedError,
    TransientError,
    Transport,
    persist,
    read,
)

CONNECTIONS = 4
CHUNK_BYTES = 32 << 20
_READ_BYTES = 256 << 10
_STREAM_BYTES = 16 << 20  # between reports of progress
_REPORT_S = 0.2
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Download:
    """A file to download.

    name: for people. sha256: None if the server does not state one; the size is checked then.
    target: where the file goes. lock: a file that is locked meanwhile. describe: turns an error
    status into the error for the user.
    """

    name: str
    url: str
    n_bytes: int
    sha256: str | None
    target: Path
    lock: Path
    describe: Callable[[StatusError], DownloadError]


def fetch(
    file: Download,
    transport: Transport,
    on_event: OnEvent,
    *,
    connections: int = CONNECTIONS,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Download `file` unless its target exists.

    If another process downloads the file, wait for that process. Raises DownloadError if the server
    refuses, sends another size than it stated or cannot be reached, ChecksumError if the bytes are
    wrong.
    """
    try:
        file.target.parent.mkdir(parents=True, exist_ok=True)
        file.lock.parent.mkdir(parents=True, exist_ok=True)
        wait = Waiting(file.name, "another process downloads it")
        with exclusive(file.lock, lambda: on_event(wait)):
            if not file.target.exists():
                _fetch_locked(file, transport, on_event, connections, chunk_bytes)
    except OSError as error:
        raise disk_error(error, file.target.parent) from error


def disk_error(error: OSError, folder: Path) -> DownloadError:
    """Return the error for a folder that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk of {folder} is full",
            error.strerror or "",
            "free some space and run the same command again: it resumes where this one stopped",
        )
    return DownloadError(
        f"cannot write to {folder}",
        error.strerror or str(error),
        "choose another folder with HF_HUB_CACHE (Ollama's models: OLLAMA_MODELS)",
    )


def _fetch_locked(
    file: Download, transport: Transport, on_event: OnEvent, connections: int, chunk_bytes: int
) -> None:
    partial = PartialFile(file.target, file.n_bytes, file.sha256, chunk_bytes)
    try:
        was_resumed = partial.resumed
        _Transfer(file, transport, on_event, partial).run(connections)
        if file.sha256 is not None and partial.digest() != file.sha256:
            partial.close()
            partial.delete()
            if not was_resumed:
                raise _wrong_hash(file)
            # Bytes of the earlier try may be the wrong ones: a crash of the system loses writes.
            on_event(Waiting(file.name, "the resumed file has the wrong hash; starting again"))
            partial = PartialFile(file.target, file.n_bytes, file.sha256, chunk_bytes)
            _Transfer(file, transport, on_event, partial).run(connections)
            if partial.digest() != file.sha256:
                partial.close()
                partial.delete()
                raise _wrong_hash(file)
        partial.publish()
    finally:
        partial.close()
    on_event(Verified(file.name, file.sha256))


def _wrong_hash(file: Download) -> ChecksumError:
    return ChecksumError(
        f"{file.name} arrived with the wrong SHA-256",
        "the bytes differ from those that the server lists, so they were deleted",
        "try again; if it happens twice, the server or a proxy between changes the file",
    )


class _Transfer:
    """The transfer of all missing chunks of a file by several threads."""

    def __init__(
        self, file: Download, transport: Transport, on_event: OnEvent, partial: PartialFile
    ) -> None:
        self._file, self._transport = file, transport
        self._on_event, self._partial = on_event, partial
        self._chunks: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        for chunk in partial.chunks:
            self._chunks.put(chunk)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = partial.done_bytes
        self._waits: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._has_ranges = True

    def run(self, connections: int) -> None:
        """Download every missing chunk. Raises DownloadError."""
        n_threads = min(connections, self._chunks.qsize())
        threads = [
            threading.Thread(target=self._work, name=f"zinc-pull-{i}", daemon=True)
            for i in range(n_threads)
        ]
        meter = Meter(self._done, self._file.n_bytes)
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_REPORT_S)
                    self._report(meter)
        finally:
            self._stop.set()
        for thread in threads:
            thread.join()
        self._report(meter)
        if self._failure is not None:
            raise self._failure
        if not self._has_ranges:
            self._whole_file(meter)

    def _report(self, meter: Meter) -> None:
        while not self._waits.empty():
            self._on_event(Waiting(self._file.name, self._waits.get()))
        done = min(self._done, self._file.n_bytes)
        rate, left = meter.update(done)
        self._on_event(Transferred(self._file.name, done, self._file.n_bytes, rate, left))

    def _work(self) -> None:
        """Download chunks until none is left, or the transfer stops."""
        try:
            while not self._stop.is_set():
                try:
                    number, start, end = self._chunks.get_nowait()
                except queue.Empty:
                    return
                if not self._chunk(start, end):
                    self._has_ranges = False
                    self._stop.set()
                    return
                self._partial.complete(number)
        except StoppedError:
            pass
        except StatusError as error:
            self._fail(self._file.describe(error))
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._stop.set()

    def _chunk(self, start: int, end: int) -> bool:
        """Download the bytes from `start` to `end`; return False if the server has no ranges."""
        patience = self._patience()
        while start < end:
            try:
                with self._transport.open(
                    self._file.url,
                    {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"},
                ) as response:
                    if response.status != 206:
                        return False
                    self._check_range(response, start)
                    before, start = start, self._receive(response, start, end)
                    if start > before:
                        patience.reset()
                    if start < end:
                        raise TransientError(f"the connection was cut at byte {start:,}")
            except (StatusError, TransientError) as error:
                patience.wait(error)
        return True

    def _whole_file(self, meter: Meter) -> None:
        """Download the file in one stream, from a server that does not support ranges."""
        self._stop.clear()
        persist(lambda: self._stream(meter), self._patience(), self._file.describe)
        for number, _, _ in self._partial.chunks:
            self._partial.complete(number)

    def _stream(self, meter: Meter) -> None:
        self._done = reached = 0
        n_bytes = self._file.n_bytes
        with self._transport.open(self._file.url, {"Accept-Encoding": "identity"}) as response:
            stated = response.headers.get("Content-Length")
            if stated is not None and stated.isdecimal() and int(stated) != n_bytes:
                raise self._wrong_size(int(stated))
            while reached < n_bytes:
                step = min(n_bytes, reached + _STREAM_BYTES)
                reached = self._receive(response, reached, step)
                self._report(meter)
                if reached < step:
                    raise TransientError(f"the connection was cut at byte {reached:,}")

    def _receive(self, response: HTTPResponse, start: int, end: int) -> int:
        """Write a response to bytes `start` to `end`; return where its last byte ends."""
        while start < end:
            if self._stop.is_set():
                raise StoppedError
            try:
                data = read(response, min(_READ_BYTES, end - start))
            except TransientError:
                break
            if not data:
                break
            self._partial.write(start, data)
            start += len(data)
            with self._lock:
                self._done += len(data)
        return start

    def _check_range(self, response: HTTPResponse, start: int) -> None:
        """Raise DownloadError if the response is not the requested range of the file."""
        stated = response.headers.get("Content-Range", "")
        found = _CONTENT_RANGE.fullmatch(stated)
        if found is None or int(found[1]) != start:
            raise DownloadError(
                f"the server of {self._file.name} sends the wrong bytes",
                f"it was asked for byte {start:,} and answers with the range {stated!r}",
                "try again later, or use another mirror",
            )
        if found[3] != "*" and int(found[3]) != self._file.n_bytes:
            raise self._wrong_size(int(found[3]))

    def _wrong_size(self, stated: int) -> DownloadError:
        return DownloadError(
            f"{self._file.name} has another size than listed",
            f"the hub lists {self._file.n_bytes:,} bytes and the file's server {stated:,}",
            "the repository may have changed meanwhile: try again",
        )

    def _patience(self) -> Patience:
        return Patience(
            f"downloading {self._file.name}",
            self._transport.pause_s,
            lambda why, seconds: self._waits.put(f"{why}; next try in {seconds:.0f} s"),
            self._stop,
            "run the same command again: it resumes the download",
        )
