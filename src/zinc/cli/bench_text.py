"""The text output of `zinc bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zinc.cli.text import table

if TYPE_CHECKING:
    from zinc.backends.capabilities import Roofline
    from zinc.cli.step_profile import Profile

ABOVE = (
    "* above the measured limit: the data was in the processor's caches, "
    "or other programs were running when the limit was measured"
)


def summary(report: dict[str, Any], limits: Roofline | None) -> str:
    """Return a table of the speeds in `report`, and the dispatches of a step."""
    rows = []
    for name in ("prefill", "decode"):
        rates = report[f"{name}_reps_tokens_per_s"]
        if not rates:
            continue
        n = report[f"{name}_tokens"]
        at = f" @ {report['depth']}" if name == "decode" and report["depth"] else ""
        if name == "decode" and report["streams"] > 1:
            at += f" x {report['streams']} streams"
        rows.append(
            (
                f"{name} {n}{at}",
                report[f"{name}_tokens_per_s"],
                f"{min(rates):,.2f} to {max(rates):,.2f}",
                report[f"{name}_gb_per_s"],
                _percent(report[f"{name}_percent_of_bandwidth"]),
                report[f"{name}_gops"],
                _percent(report[f"{name}_percent_of_int8_peak"]),
            )
        )
    header = ("", "tokens/s |", "all reps |", "GB/s |", "of read |", "GOPS |", "of int8 |")
    lines = [
        f"{report['model']} ({report['model_bytes'] / 1e6:,.1f} MB)",
        f"{report['cpu_model']}, {report['description']}, KV {report['kv_dtype']}",
    ]
    if limits is not None:
        lines.append(
            f"measured limits: reads {report['bandwidth_gb_per_s']:,.1f} GB/s, "
            f"computes {report['int8_peak_gops']:,.0f} int8 GOPS"
        )
    lines += ["", _with_note(table(header, rows))]
    names = [name for name in ("prefill", "decode") if report.get(f"{name}_step")]
    lines += [_step(report, name) for name in names]
    return "\n".join(lines)


def profile(found: Profile, phases: list[dict[str, Any]], kernels: list[dict[str, Any]]) -> str:
    """Return the time of a step by phase and by kernel."""
    shape, whole_ms = found.shape, 1e3 * found.step_s
    percent = found.percent_of_step
    share = f"{percent:.0f}% of the {whole_ms:.3f} ms it takes"
    if percent > 100:
        share = f"{whole_ms:.3f} ms when they are not timed one by one"
    tables = f"{_profile('phase', phases)}\n\n{_profile('kernel', kernels)}"
    return (
        f"a step of {shape.tokens} after {shape.depth} tokens: "
        f"{1e3 * sum(found.seconds):.3f} ms in launches, {share}\n{_with_note(tables)}"
    )


def speculation(found: dict[str, Any]) -> str:
    """Return what drafts cost and gain."""
    costs = [(row["rows"], f"{row['ms']:.3f}", row["ratio"]) for row in found["rows"]]
    answers = [
        (
            row["name"],
            row["plain_tokens_per_s"],
            row["drafted_tokens_per_s"],
            row["speedup"],
            row["tokens_per_step"],
            f"{row['accepted_tokens']} of {row['drafted_tokens']}",
        )
        for row in found["answers"]
    ]
    header = ("answer", "tokens/s |", "with drafts |", "speedup |", "tokens/step |", "accepted |")
    return (
        f"{table(('rows of a step |', 'ms |', 'steps of one row |'), costs)}\n\n"
        f"{table(header, answers)}"
    )


def _step(report: dict[str, Any], name: str) -> str:
    from zinc.cli.plan import barrier_text

    n = report[f"{name}_submissions_per_step"]
    return (
        f"a {name} step: {n:g} submission{'s' * (n != 1)}, {barrier_text(report[f'{name}_step'])}, "
        f"{report[f'{name}_host_us_per_step']:,.0f} us of host"
    )


def _profile(title: str, rows: list[dict[str, Any]]) -> str:
    cells = [
        (
            row[title],
            row["launches"],
            f"{row['seconds'] * 1e3:.3f}",
            f"{row['percent']:.1f}%",
            f"{row['bytes'] / 1e6:,.2f}",
            row["bytes"] / 1e9 / row["seconds"] if row["seconds"] else 0.0,
            _percent(row["percent_of_bandwidth"]),
        )
        for row in rows
    ]
    return table((title, "launches |", "ms |", "of all |", "MB |", "GB/s |", "of read |"), cells)


def _percent(value: float | None) -> str:
    """Return a percentage of a limit, marked if it exceeds 100; all have the same width."""
    if value is None:
        return "- "
    return f"{value:.0f}%" + ("*" if round(value) > 100 else " ")


def _with_note(tables: str) -> str:
    return f"{tables}\n{ABOVE}" if "%*" in tables else tables
