"""The kernels of `kernels.compile_all` as JSON and as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import packets
from drivers import Driver
from kernels import Row

BEGIN, END = "<!-- {name}:begin -->", "<!-- {name}:end -->"


def gpus_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["gpu"] for row in rows))


def cell(values: Sequence[object]) -> str:
    """Return one value if all are equal, else all of them; None is a GPU without the kernel."""
    if len(different := {*values} - {None}) == 1:
        return str(different.pop())
    return " / ".join("–" if value is None else str(value) for value in values)


def listing(driver: Driver, data: dict[str, Any]) -> str:
    """Return every kernel as Markdown tables, one for each model and step."""
    gpus = gpus_of(data["kernels"])
    lines = [f"Mesa {data['mesa']}; cells: {' / '.join(gpus)}, or one number for all."]
    tables: dict[tuple[str, str], dict[tuple[str, str], dict[str, Row]]] = {}
    for row in data["kernels"]:
        table = tables.setdefault((row["model"], row["step"]), {})
        table.setdefault((row["kernel"], row["macros"]), {})[row["gpu"]] = row
    titles = ["kernel", *driver.columns.values(), "macros"]
    for (model, step), table in tables.items():
        lines += ["", f"## {model}, {step}", ""]
        lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for (kernel, macros), by_gpu in table.items():
            cells = [
                cell([by_gpu[gpu][name] if gpu in by_gpu else None for gpu in gpus])
                for name in driver.columns
            ]
            lines.append(f"| {kernel} | {' | '.join(cells)} | {macros} |")
    return "\n".join(lines)


def summary(driver: Driver, data: dict[str, Any]) -> str:
    """Return a Markdown table with a row for each GPU, whose cells have a value for each step."""
    rows, columns = data["kernels"], driver.summary
    steps = list(dict.fromkeys(row["step"] for row in rows))
    lines = [f"| GPU | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for gpu in gpus_of(rows):
        of_steps = [[r for r in rows if (r["gpu"], r["step"]) == (gpu, step)] for step in steps]
        cells = [cell([of(found) for found in of_steps]) for of in columns.values()]
        lines.append(f"| {gpu} | {' | '.join(cells)} |")
    return "\n".join(lines)


def steps_table(steps: dict[str, Any]) -> str:
    """Return a Markdown table of a decode step on each GPU, with usual and coherent kernels."""
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "dwords": lambda step: f"{step['dwords']:,}",
        "dispatches": lambda step: step["dispatches"],
        "barriers": lambda step: step["waits"],
        "that flush L2": lambda step: step["l2_flushes"],
        "cache actions of a barrier": lambda step: (
            " or ".join(packets.named(int(bits, 16)) for bits in step["cache_actions"]) or "none"
        ),
    }
    lines = [f"| GPU | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for gpu, by_kernels in steps.items():
        cells = [cell([of(step) for step in by_kernels.values()]) for of in columns.values()]
        lines.append(f"| {gpu} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(driver: Driver) -> str:
    """Return the driver's page with the tables of its data."""
    text, data = driver.page.read_text(), json.loads(driver.data.read_text())
    made = {"table": summary(driver, data)}
    if "steps" in data:
        made["steps"] = steps_table(data["steps"])
    for name, table in made.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    return text


def as_json(data: dict[str, Any]) -> str:
    """Return `data` as JSON with one line for each kernel."""
    kernels = ",\n".join(f"  {json.dumps(row)}" for row in data["kernels"])
    others = {name: value for name, value in data.items() if name != "kernels"}
    head = json.dumps({**others, "kernels": []}).removesuffix("[]}")
    return f"{head}[\n{kernels}\n]}}\n"
