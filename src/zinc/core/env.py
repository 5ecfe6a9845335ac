"""The ZINC_* environment variables: one typed table. No other module reads one.

They are for debugging; where an option of the command line or a Python argument sets the same, that
wins. A value that cannot be understood is an error, never a silent default.

    python -m zinc.core.env > docs/reference/environment.md
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
    """A variable: its default, the values it may have, its meaning, and the option that wins.

    `unset` says in words what happens without it.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    allowed: str
    doc: str
    unset: str
    option: str = ""

    def get(self, environ: Mapping[str, str] | None = None) -> T:
        """Return the value in `environ`, the default if it is empty or not set.

        Raises RequestError when it is not allowed.
        """
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
    "ZINC_BACKEND",
    "auto",
    str,
    "the name of a backend",
    "backend to run on",
    "auto",
    "--backend",
)
DEVICE: Variable[str | None] = Variable(
    "ZINC_DEVICE",
    None,
    str,
    "a device that `zinc check` lists",
    "device of the backend",
    "the backend's first",
    "--device",
)
THREADS: Variable[int | None] = Variable(
    "ZINC_THREADS",
    None,
    _count,
    "a whole number from 1",
    "CPU threads",
    "one a core",
    "--threads",
)
LEVEL: Variable[str | None] = Variable(
    "ZINC_LEVEL",
    None,
    str,
    "a SIMD level that `zinc check` lists",
    "SIMD level of the CPU backend",
    "the best of this machine",
)
LOG = Variable(
    "ZINC_LOG",
    "warning",
    _log_level,
    f"one of {', '.join(LOG_LEVELS)}",
    "lowest level that is logged to stderr; debug adds the traceback of an error",
    "warning",
)
CACHE: Variable[str | None] = Variable(
    "ZINC_CACHE",
    None,
    str,
    "a folder",
    "folder for compiled GPU kernels",
    "`zinc` in $XDG_CACHE_HOME",
)

VARIABLES: tuple[Variable[str] | Variable[str | None] | Variable[int | None], ...] = (
    BACKEND,
    DEVICE,
    THREADS,
    LEVEL,
    LOG,
    CACHE,
)


def cache_folder() -> Path:
    """Return the folder for files that zinc can make again (XDG base directory specification)."""
    if (given := CACHE.get()) is not None:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zinc"


def markdown() -> str:
    """Return docs/reference/environment.md."""
    rows = []
    for v in VARIABLES:
        option = f"`{v.option}`" if v.option else ""
        rows.append(f"| `{v.name}` | {v.doc} | {v.allowed} | {v.unset} | {option} |")
    return "\n".join(
        [
            "# Environment variables",
            "",
            "Made by `python -m zinc.core.env`; a test holds this page against the code. An option",
            "in the last column wins over its variable. An empty value counts as not set, and a",
            "value that is not allowed is an error.",
            "",
            "| variable | meaning | value | when not set | option |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "zinc also honours `XDG_CACHE_HOME` (default `~/.cache`), `XDG_STATE_HOME` (default",
            "`~/.local/state`, where `zinc chat` keeps its history), and `NO_COLOR` and",
            "`TERM=dumb`, which turn progress bars and dimmed text off.",
            "",
        ]
    )


if __name__ == "__main__":
    print(markdown(), end="")
