"""The files and batches of a server's clients, in a folder that survives restarts.

    files/ID.json       what a file is       files/ID.jsonl      its contents
    batches/ID.json     what a batch is      batches/ID.jsonl    its journal, until it has ended

A record is replaced atomically, after the contents that it names are written. A file without a
record is left over from an interrupted upload, and is removed when the folder is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zinc.core.errors import RequestError
from zinc.server.batch.journal import lock
from zinc.server.batch.rows import is_failure
from zinc.server.errors import ApiError
from zinc.server.http.responses import encode_json

Record = dict[str, Any]

ENDED = ("completed", "failed", "cancelled")
_OWNER = "owner"  # member of a record that clients do not see


class BatchStore:
    """Files and batches by id. Each is visible only to the owner that created it.

    max_bytes: the most bytes of all contents. Raises RequestError if the folder cannot be written
    or another server uses it.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self.max_bytes = folder, max_bytes
        self._uploads: set[Path] = set()
        try:
            for name in ("files", "batches"):
                (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            if not lock(self._lock):
                os.close(self._lock)
                raise RequestError(
                    f"{folder} is in use", "another server keeps its batches there", "name another"
                )
            self._files = self._read("files")
            self._batches = self._read("batches")
            self._remove_strays()
        except OSError as error:
            raise RequestError(
                f"batches cannot be kept in {folder}",
                error.strerror or str(error),
                "name a folder that can be written",
            ) from None

    def close(self) -> None:
        """Let another server use the folder."""
        os.close(self._lock)

    @property
    def used_bytes(self) -> int:
        """The size of all contents, with unfinished uploads and the journals of batches."""
        journals = [self.journal_path(b["id"]) for b in self._batches.values() if not _ended(b)]
        files: int = sum(f["bytes"] for f in self._files.values())
        return files + sum(map(_size, [*journals, *self._uploads]))

    @contextlib.contextmanager
    def upload(self) -> Iterator[Path]:
        """Yield a path for the contents of an upload; delete them unless they become a file."""
        path = self._folder / "files" / f"file-{uuid.uuid4().hex}.jsonl"
        self._uploads.add(path)
        try:
            yield path
        finally:
            self._uploads.discard(path)
            if path.stem not in self._files:
                path.unlink(missing_ok=True)

    @property
    def room_bytes(self) -> int:
        """The bytes that are left for contents."""
        return max(0, self.max_bytes - self.used_bytes)

    def content_path(self, id: str) -> Path:
        """Return the path of the contents of a file."""
        return self._folder / "files" / f"{id}.jsonl"

    def journal_path(self, id: str) -> Path:
        """Return the path of the journal of a batch."""
        return self._folder / "batches" / f"{id}.jsonl"

    def add_file(self, path: Path, filename: str, purpose: str, owner: str) -> Record:
        """Add the contents at `path`, which `upload` or `content_path` returned, as a file."""
        record = {
            "id": path.stem,
            "object": "file",
            "bytes": path.stat().st_size,
            "created_at": int(time.time()),
            "filename": filename,
            "purpose": purpose,
            "status": "processed",
            _OWNER: owner,
        }
        self._write("files", record)
        self._files[path.stem] = record
        self._uploads.discard(path)
        return record

    def file(self, id: str, owner: str, param: str | None = None) -> Record:
        """Return a file. Raises ApiError 404, or 400 if the id is in the request field `param`."""
        return _owned(self._files, "file", id, owner, param)

    def files(self, owner: str) -> list[Record]:
        """Return the files of an owner, the newest first."""
        return _newest_first(self._files, owner)

    def delete_file(self, id: str, owner: str) -> None:
        """Delete a file. Raises ApiError: 404, or 409 if a batch that runs reads it."""
        self.file(id, owner)
        if any(b["input_file_id"] == id and not _ended(b) for b in self._batches.values()):
            what = f"the file {id!r} is in use"
            raise ApiError(409, what, "a batch reads it", "cancel the batch, or wait for its end")
        del self._files[id]
        self._record_path("files", id).unlink(missing_ok=True)
        self.content_path(id).unlink(missing_ok=True)

    def add_batch(self, fields: Record, owner: str) -> Record:
        """Add a batch with the members `fields`, to be run."""
        times = ("in_progress", "expires", "finalizing", "completed", "failed", "expired",
                 "cancelling", "cancelled")  # fmt: skip
        record = {
            "id": f"batch_{uuid.uuid4().hex}",
            "object": "batch",
            "errors": None,
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": int(time.time()),
            **dict.fromkeys(f"{name}_at" for name in times),
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            **fields,
            _OWNER: owner,
        }
        self.save(record)
        self._batches[record["id"]] = record
        return record

    def batch(self, id: str, owner: str) -> Record:
        """Return a batch. Raises ApiError 404."""
        return _owned(self._batches, "batch", id, owner, None)

    def batches(self, owner: str) -> list[Record]:
        """Return the batches of an owner, the newest first."""
        return _newest_first(self._batches, owner)

    def unfinished(self) -> list[Record]:
        """Return the batches that have not ended, the oldest first."""
        return [each for each in self._batches.values() if not _ended(each)]

    def set_status(self, batch: Record, status: str) -> None:
        """Set the status of a batch and the time of the change, and save the batch."""
        batch["status"] = status
        batch[f"{status}_at"] = int(time.time())
        self.save(batch)

    def save(self, batch: Record) -> None:
        """Write the record of a batch to the disk."""
        self._write("batches", batch)

    def split_journal(self, batch: Record) -> dict[str, Path]:
        """Write the output file and the error file of a batch; return the paths of both, by kind.

        Those without lines are left out. After an interruption it can be called again. It can be
        called in another thread.
        """
        journal, found = self.journal_path(batch["id"]), dict[str, Path]()
        if not journal.exists():
            return found
        for kind, failures in (("output", False), ("error", True)):
            path = self.content_path(f"file-{batch['id'].removeprefix('batch_')}-{kind}")
            with journal.open("rb") as lines, _private(path) as out:
                for line in lines:
                    if is_failure(json.loads(line)) is failures:
                        out.write(line)
                out.flush()
                os.fsync(out.fileno())
            if path.stat().st_size:
                found[kind] = path
            else:
                path.unlink()
        return found

    def add_outputs(self, batch: Record, paths: dict[str, Path]) -> None:
        """Add the files that `split_journal` wrote to a batch."""
        for kind, path in paths.items():
            batch[f"{kind}_file_id"] = path.stem
            name = f"{batch['id']}_{kind}.jsonl"
            self.add_file(path, name, "batch_output", batch[_OWNER])

    def remove_journal(self, batch: Record) -> None:
        """Remove the journal of a batch that has ended."""
        self.journal_path(batch["id"]).unlink(missing_ok=True)

    def _read(self, kind: str) -> dict[str, Record]:
        """Return the records of a kind by id, the oldest first."""
        found = []
        for path in (self._folder / kind).glob("*.json"):
            try:
                record = json.loads(path.read_bytes())
                found.append((record["created_at"], path.stat().st_mtime_ns, record))
            except (ValueError, KeyError, TypeError):
                raise RequestError(
                    f"{path} cannot be read", "it is not the record of a file or batch", "remove it"
                ) from None
        found.sort(key=lambda each: each[:2])
        return {record["id"]: record for *_, record in found}

    def _write(self, kind: str, record: Record) -> None:
        path = self._record_path(kind, record["id"])
        part = path.with_suffix(".part")
        with _private(part) as file:
            file.write(encode_json(record))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)

    def _record_path(self, kind: str, id: str) -> Path:
        return self._folder / kind / f"{id}.json"

    def _remove_strays(self) -> None:
        for kind, records in (("files", self._files), ("batches", self._batches)):
            for path in (self._folder / kind).iterdir():
                if path.suffix == ".part" or path.stem not in records:
                    path.unlink()
        for batch in self._batches.values():
            if _ended(batch):
                self.remove_journal(batch)


def owner_id(key: str) -> str:
    """Return the id that records contain in place of an API key; "" for no key."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key else ""


def owner(record: Record) -> str:
    """Return the owner of a file or batch, as `owner_id` returns it."""
    found: str = record[_OWNER]
    return found


def shown(record: Record) -> Record:
    """Return a file or batch as clients see it."""
    return {name: value for name, value in record.items() if name != _OWNER}


def _ended(batch: Record) -> bool:
    return batch["status"] in ENDED


def _owned(records: dict[str, Record], kind: str, id: str, owner: str, param: str | None) -> Record:
    found = records.get(id)
    if found is None or found[_OWNER] != owner:
        raise ApiError(
            404 if param is None else 400,
            f"there is no {kind} {id[:80]!r}",
            "it was never created, or it has been deleted",
            code=f"{kind}_not_found",
            param=param,
        )
    return found


def _newest_first(records: dict[str, Record], owner: str) -> list[Record]:
    return [each for each in reversed(list(records.values())) if each[_OWNER] == owner]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _private(path: Path) -> Any:
    """Open a file for writing that other users cannot read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
