"""Events of a pull. The CLI draws them, and `--json` prints each as one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class Chosen:
    """The files to download are known. why: the reason for this quantisation, or ""."""

    event: ClassVar[str] = "chosen"
    model: str
    quantisation: str
    why: str
    files: tuple[str, ...]
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Transferred:
    """Bytes of a file have arrived. done_bytes includes those of an earlier, interrupted pull."""

    event: ClassVar[str] = "progress"
    file: str
    done_bytes: int
    total_bytes: int
    bytes_per_s: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pull waits: for another process that downloads the file, or for the server."""

    event: ClassVar[str] = "waiting"
    file: str
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """A file is complete, and its SHA-256 is right (`sha256`; None if the hub states none)."""

    event: ClassVar[str] = "verified"
    file: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The model is ready to use. path: its (first) file."""

    event: ClassVar[str] = "finished"
    model: str
    path: str


Event: TypeAlias = Chosen | Transferred | Waiting | Verified | Finished
OnEvent: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Do nothing: the listener of a silent pull."""


def json_line(event: Event) -> str:
    """Return an event as one line of JSON."""
    return json.dumps({"event": event.event, **asdict(event)})
