"""Memory: how much is available, and whether huge pages may be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zinc.cli.checks.finding import Finding, Section, fail, ok, read, warn
from zinc.cli.text import size
from zinc.core import host_memory
from zinc.engine.load.memory import available_memory_bytes

LITTLE_BYTES = 2 << 30
LEAST_BYTES = 256 << 20


def section(root: Path = Path("/"), available_bytes: int | None = None) -> Section:
    """Check the memory. available_bytes: by default what the system reports."""
    total = host_memory.total_memory_bytes()
    available = available_memory_bytes() if available_bytes is None else available_bytes
    findings = (_available(total, available), *_huge_pages(root))
    facts = {"memory_bytes": total, "available_memory_bytes": available}
    return Section("Memory", findings, facts)


def _available(total: int, available: int) -> Finding:
    text = f"{size(available)} of {size(total)} are available"
    if available < LEAST_BYTES:
        return fail(text, "close other programs: not even a small model fits")
    if available < LITTLE_BYTES:
        return warn(text, "close other programs: only small models fit")
    return ok(text)


def _huge_pages(root: Path) -> Iterator[Finding]:
    setting = read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if "[never]" in setting:
        yield warn(
            "transparent huge pages are off, so weights are read with more TLB misses",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    elif setting:
        yield ok("transparent huge pages are on")
