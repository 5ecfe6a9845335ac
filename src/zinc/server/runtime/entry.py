"""A model that the server offers: its file, its state, and the model itself while it is loaded."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from zinc.core.errors import FormatError, ModelError, UnsupportedError, ZincError
from zinc.engine.load.files import resolve_model
from zinc.engine.sampling import recommended
from zinc.formats.gguf import GGUFFile
from zinc.server.config import ModelSource
from zinc.server.runtime.loading import LoadThread
from zinc.server.runtime.served_model import ServedModel


class State(StrEnum):
    """The state of a model."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


class Entry:
    """A model of the pool, loaded or not. Raises FormatError if its file does not exist.

    failure: why it could not be loaded. progress: loaded bytes, and bytes in all. thread: the
    thread of the last load, which can outlive the requests that waited for it. users: requests that
    are using the model. needed_bytes: memory that the model takes; the size of its files until it
    has been loaded once. ttl_s: idle seconds after which it is unloaded (None: the server's).
    """

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.path = resolve_model(source.path)
        self.state = State.UNLOADED
        self.failure: ZincError | None = None
        self._broken_version: tuple[int, int] | None = None
        self.progress = (0, 0)
        self.model: ServedModel | None = None
        self.loading: asyncio.Task[None] | None = None
        self.thread: LoadThread | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.users = 0
        self.last_used = time.monotonic()
        self.ttl_s: float | None = None
        self.created = int(self.path.stat().st_mtime)
        self.size_bytes = self.needed_bytes = file_bytes(self.path)

    def fail(self, error: ZincError) -> None:
        """Note why the model could not be loaded."""
        self.state = State.FAILED
        # A copy: the traceback of the error refers to the partly loaded model.
        self.failure = ZincError(error.what, error.why, error.hint)
        is_lasting = isinstance(error, FormatError | ModelError | UnsupportedError)
        self._broken_version = self._version() if is_lasting else None

    @property
    def is_broken(self) -> bool:
        """Whether loading failed because of the file, and the file has not changed since."""
        return self.failure is not None and self._broken_version == self._version()

    def _version(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError:
            return (0, 0)
        return found.st_mtime_ns, found.st_size

    def sampling(self) -> dict[str, Any]:
        """Return the arguments of SamplingParams that the file recommends.

        Reads the file if the model is not loaded.
        """
        if self.model is not None:
            return self.model.llm.sampling
        try:
            with GGUFFile.open(self.path) as file:
                return recommended(file.metadata)
        except ZincError:
            return {}  # loading reports the error

    def describe(self) -> dict[str, Any]:
        """Return the model's entry of /v1/models: OpenAI's fields, plus state and metadata."""
        meta: dict[str, Any] = {"size": self.size_bytes}
        row: dict[str, Any] = {
            "id": self.source.name,
            "object": "model",
            "created": self.created,
            "owned_by": "zinc",
            "state": str(self.state),
            "meta": meta,
        }
        if self.state is State.LOADING and self.progress[1]:
            row["progress"] = round(self.progress[0] / self.progress[1], 3)
        if self.failure is not None:
            row["error"] = self.failure.in_options()
        if self.model is not None:
            llm = self.model.llm
            meta.update(
                n_vocab=llm.spec.vocab,
                n_ctx=llm.context,
                n_ctx_train=llm.spec.context,
                n_embd=llm.spec.hidden,
                kind=llm.spec.kind.value,
                memory_bytes=llm.memory.total_bytes,
                backend=llm.backend.describe(),
            )
        return row


def file_bytes(path: Path) -> int:
    """Return the size of a model file in bytes, with all parts of a split file."""
    stem, mark, rest = path.name.rpartition("-of-")
    if mark and stem[-5:].isdecimal() and rest[:5].isdecimal():
        parts = path.parent.glob(f"{_escape(stem[:-5])}*-of-{_escape(rest)}")
        return sum(part.stat().st_size for part in parts)
    return path.stat().st_size


def _escape(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)
