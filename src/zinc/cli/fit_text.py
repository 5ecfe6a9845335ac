"""The memory that a model takes, as text and as JSON, for several commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from zinc.cli.text import size
from zinc.engine.load.fit import FitReport, MemoryNeed
from zinc.engine.load.memory import RESERVE_SHARE


def as_json(report: FitReport) -> dict[str, Any]:
    """Return a report as JSON values."""
    return {
        "fits": report.fits,
        "fitting_context_tokens": report.fitting_context_tokens,
        "memories": [
            {**asdict(memory), "needed_bytes": memory.needed_bytes, "fits": memory.fits}
            for memory in report.memories
        ],
    }


def verdict(report: FitReport) -> str:
    """Return one line for each memory, and the context that fits if this one does not."""
    several = len(report.memories) > 1
    share = f"({1 - RESERVE_SHARE:.0%} of the free memory)"
    lines = []
    for memory in report.memories:
        fits = "fits in memory" if memory.fits else "DOES NOT FIT in memory"
        where = f" on {memory.backend}" if several else ""
        needed, available = size(memory.needed_bytes), size(memory.available_bytes)
        lines.append(f"{fits}{where}: needs {needed}, {available} are available {share}")
    if not report.fits:
        fitting = report.fitting_context_tokens
        lines.append(
            f"a context of {fitting:,} tokens fits instead of {report.context_tokens:,}; "
            "a run without --context takes that"
            if fitting
            else "no context fits: use a smaller model or quantisation"
        )
    return "\n".join(lines)


def purposes(memory: MemoryNeed, context: int) -> str:
    """Return the bytes of a memory by purpose, in one line."""
    parts = [
        f"weights {size(memory.weights_bytes)}",
        f"KV cache {size(memory.kv_bytes)} for {context:,} tokens",
        *([f"recurrent state {size(memory.state_bytes)}"] if memory.state_bytes else []),
        f"scratch {size(memory.scratch_bytes)}",
    ]
    return ", ".join(parts)
