"""The ZINC_* environment variables: one typed table, and no other module reads one.

They are for debugging: each has a command line option or an argument that does the same for one
run, and that wins. A value that cannot be understood is an error, never a silent default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from zinc.core.errors import RequestError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """A variable: its default, what it may be, and what it does."""

    name: str
    default: T
    parse: Callable[[str], T]
    allowed: str
    doc: str

    def get(self, environ: Mapping[str, str] | None = None) -> T:
        """Its value now; an empty string counts as not set. Raises RequestError."""
        text = (os.environ if environ is None else environ).get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise RequestError(
                f"the environment variable {self.name} is {text!r}", f"it must be {self.allowed}"
            ) from error


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _log_level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(text)
    return text.lower()


LOG_LEVELS = ("debug", "info", "warning")

BACKEND = Variable(
    "ZINC_BACKEND", "auto", str, "the name of a backend", "backend when --backend is not given"
)
THREADS: Variable[int | None] = Variable(
    "ZINC_THREADS", None, _count, "a whole number from 1", "CPU threads when --threads is not given"
)
LEVEL: Variable[str | None] = Variable(
    "ZINC_LEVEL",
    None,
    str,
    "a SIMD level that `zinc check` lists",
    "SIMD level of the CPU backend (default: the best this machine runs)",
)
DEVICE: Variable[str | None] = Variable(
    "ZINC_DEVICE",
    None,
    str,
    "a device that `zinc check` lists",
    "device of the backend when --device is not given",
)
LOG = Variable(
    "ZINC_LOG",
    "warning",
    _log_level,
    f"one of {', '.join(LOG_LEVELS)}",
    "log to stderr from this level on; debug also shows the traceback of an error",
)
CACHE: Variable[str | None] = Variable(
    "ZINC_CACHE",
    None,
    str,
    "a folder",
    "where compiled GPU kernels are kept (default: zinc in the user's cache folder)",
)

VARIABLES: tuple[Variable[str] | Variable[str | None] | Variable[int | None], ...] = (
    BACKEND,
    THREADS,
    LEVEL,
    DEVICE,
    LOG,
    CACHE,
)


def cache_folder() -> Path:
    """Where zinc keeps what it can make again, by the XDG base directory specification."""
    if (given := CACHE.get()) is not None:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zinc"
