"""Events of a pull. The CLI draws them, and `--json` prints each as one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import ClassVar, TypeAlias

from zinc.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choice of the files to download. why: the reason for this quantisation, or ""."""

    event: ClassVar[str] = "chosen"
    model: str
    quantisation: str
    why: str
    files: tuple[str, ...]
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Transferred:
    """Progress of a file. done_bytes includes bytes of an earlier, interrupted pull."""

    event: ClassVar[str] = "progress"
    file: str
    done_bytes: int
    total_bytes: int
    bytes_per_s: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pause: another process downloads the file, or the server is asked again later."""

    event: ClassVar[str] = "waiting"
    file: str
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """A complete file. sha256: its hash, which was checked; None if the hub states none."""

    event: ClassVar[str] = "verified"
    file: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a pull: the model is ready to use. path: its (first) file."""

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
