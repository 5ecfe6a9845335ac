"""The operating system: versions, limits of the process and of its container."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zinc import __version__
from zinc.cli.checks.finding import Finding, Section, fail, ok, read, warn
from zinc.cli.text import size

LEAST_MEMORY_BYTES = 1 << 30
LEAST_FILES = 1024  # open files: the server's connections, and the parts of a model


def section(root: Path = Path("/")) -> Section:
    """Check versions and limits."""
    system = f"{platform.system()} {platform.machine()}"
    findings = (
        ok(f"zinc {__version__}, Python {platform.python_version()}, {system}"),
        *_container(root),
        *_open_files(),
        *_temporary_folder(),
    )
    facts = {"zinc": __version__, "python": platform.python_version(), "system": system}
    return Section("System", findings, facts)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory limit of the container (cgroup v2 or v1); None if there is none."""
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = read(root / name)
        if text.isdecimal() and int(text) < 1 << 60:  # v1 writes a huge number for no limit
            return int(text)
    return None


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Return how many CPUs the container may use (cgroup v2); None if there is no limit."""
    quota, _, period = read(root / "sys/fs/cgroup/cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _container(root: Path) -> Iterator[Finding]:
    limit = memory_limit_bytes(root)
    if limit is None:
        return
    text = f"the container may use {size(limit)} of memory"
    if limit < LEAST_MEMORY_BYTES:
        yield fail(text, "raise the limit, for example docker run --memory 16g")
    else:
        yield ok(text)


def _open_files() -> Iterator[Finding]:
    if sys.platform == "win32":
        return
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < LEAST_FILES:
        enough = min(most, 4096) if most > 0 else 4096
        yield warn(f"a process may open {allowed} files", f"ulimit -n {enough}")
    else:
        yield ok(f"a process may open {allowed} files")


def _temporary_folder() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"zinc")
    except OSError as error:
        folder = os.environ.get("TMPDIR", tempfile.gettempdir())
        reason = error.strerror or str(error)
        yield fail(
            f"temporary files cannot be written to {folder}: {reason}",
            "set TMPDIR to a folder that can be written",
        )
