"""Read bandwidth of this machine's devices, which limits decode.

It is measured once for each device and kept in the cache folder, with the processor, the device,
its driver or threads, and the date. `zinc check` and `zinc bench` measure it again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from zinc.backends.api import Backend
from zinc.backends.capabilities import Roofline
from zinc.core import env
from zinc.core.dataclass import dataclass
from zinc.core.errors import ZincError
from zinc.core.processor import cpu_model

log = logging.getLogger("zinc.loading")

FILE_NAME = "bandwidth.json"


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Read bandwidth of a device, and the date of its measurement as YYYY-MM-DD."""

    bytes_per_s: float
    measured: str


BandwidthOf: TypeAlias = Callable[[Backend], Bandwidth | None]


def bandwidth_of(
    backend: Backend, measure: Callable[[Backend], Roofline | None] = lambda each: each.measure()
) -> Bandwidth | None:
    """Return the bandwidth of a backend's device; measure it if it is not known yet.

    None if the backend cannot measure. measure: measures the limits of a device.
    """
    if (known := _stored().get(_key(backend))) is not None:
        return known
    try:
        limits = measure(backend)
    except ZincError as error:
        log.info("the bandwidth of %s cannot be measured: %s", backend.name, error)
        return None
    return None if limits is None else store(backend, limits)


def store(backend: Backend, limits: Roofline) -> Bandwidth:
    """Keep the measured limits of a backend's device; return its bandwidth."""
    found = Bandwidth(limits.bytes_per_s, datetime.now(UTC).date().isoformat())
    rows = {key: asdict(each) for key, each in {**_stored(), _key(backend): found}.items()}
    path = file_path()
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(rows, indent=2))
        part.replace(path)
    except OSError as error:  # it is measured again next time
        log.info("cannot write %s: %s", path, error)
    return found


def file_path() -> Path:
    """Return the file that keeps the measurements."""
    return env.cache_folder() / FILE_NAME


def _key(backend: Backend) -> str:
    return f"{cpu_model()} | {backend.describe()}"


def _stored() -> dict[str, Bandwidth]:
    """Return the bandwidths in the cache folder by machine and device; damaged ones are skipped."""
    try:
        rows = json.loads(file_path().read_text())
    except (OSError, ValueError):
        return {}
    items = rows.items() if isinstance(rows, dict) else ()
    return {key: found for key, row in items if (found := _bandwidth(row)) is not None}


def _bandwidth(row: Any) -> Bandwidth | None:
    """Return an entry of the file, or None if it is not valid."""
    match row:
        case {"bytes_per_s": int() | float() as rate, "measured": str() as date} if rate > 0:
            return Bandwidth(float(rate), date)
    return None
