"""The memory that a model takes and its speed, as text and as JSON, for several commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from zinc.cli.roofline import measure_visibly
from zinc.cli.text import size
from zinc.engine.load.bandwidth import bandwidth_of
from zinc.engine.load.fit import DecodeReads, FitReport, MemoryNeed, fit_report
from zinc.engine.load.memory import RESERVE_SHARE
from zinc.engine.load.planned import PlannedModel


def report_of(planned: PlannedModel, context: int) -> FitReport:
    """Return the memory and speed of a planned model. Prints progress if a device is measured."""
    return fit_report(planned, context, lambda backend: bandwidth_of(backend, measure_visibly))


def as_json(report: FitReport) -> dict[str, Any]:
    """Return a report as JSON values."""
    return {
        "fits": report.fits,
        "fitting_context_tokens": report.fitting_context_tokens,
        "decode_tokens_per_s": report.decode_tokens_per_s,
        "decode": [asdict(each) for each in report.reads],
        "memories": [
            {**asdict(memory), "needed_bytes": memory.needed_bytes, "fits": memory.fits}
            for memory in report.memories
        ],
    }


def verdict(report: FitReport) -> str:
    """Return lines about the memory: what fits, and how fast it lets decode be."""
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
    if report.decode_tokens_per_s is not None:
        reads = ", ".join(map(_read, report.reads))
        lines.append(f"decode {speed(report.decode_tokens_per_s)}: {reads}")
    return "\n".join(lines)


def speed(tokens_per_s: float | None) -> str:
    """Return the speed that bandwidth allows; empty if it is not known."""
    if tokens_per_s is None:
        return ""
    shown = f"{tokens_per_s:.1f}" if tokens_per_s < 10 else f"{tokens_per_s:,.0f}"
    return f"up to {shown} tokens/s"


def _read(reads: DecodeReads) -> str:
    """Return the bytes of a token on one device and its bandwidth."""
    bandwidth = reads.bandwidth
    rate = "" if bandwidth is None else f" at {size(bandwidth.bytes_per_s)}/s"
    date = "" if bandwidth is None else f", measured {bandwidth.measured}"
    return f"{reads.backend} reads {size(reads.token_bytes)} per token{rate}{date}"


def purposes(memory: MemoryNeed, context: int) -> str:
    """Return the bytes of a memory by purpose, in one line."""
    parts = [
        f"weights {size(memory.weights_bytes)}",
        f"KV cache {size(memory.kv_bytes)} for {context:,} tokens",
        *([f"recurrent state {size(memory.state_bytes)}"] if memory.state_bytes else []),
        f"scratch {size(memory.scratch_bytes)}",
    ]
    return ", ".join(parts)
