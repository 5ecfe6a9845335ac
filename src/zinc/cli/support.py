"""`zinc support`: which architectures and block formats run on which backend, with which kernels.

Nothing is listed by hand: architectures are planned as a model would be
(zinc.models.parts.probe), and every backend is asked for its kernels, which needs no device.
docs/reference/support.md is the output of `--markdown`, where the CPU is shown at its portable
level.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zinc.cli import usage
from zinc.cli.text import table
from zinc.cli.usage import UsageError
from zinc.core.errors import ZincError

if TYPE_CHECKING:
    from zinc.backends.api import Kernels
    from zinc.ops.graph import Node
    from zinc.ops.step import StepCondition
    from zinc.ops.values import RowFormat
    from zinc.quant.blocks import GGMLType

PORTABLE = {"level": "scalar"}
NONE = "-"
LIST_WIDTH = 44
Rows: TypeAlias = list[tuple[object, ...]]

INTRODUCTION = """\
# What runs where

Made by `zinc support --markdown`; a test holds this page against the code. `zinc support` prints
the same for your machine, and whether its devices are there.

An architecture runs with a block format on a backend that has all of its kernels and reads the
format. Kernels are templates over the decoders of the formats, so each pair is not listed. What is
missing is an error when a model is loaded, never a slower path.
"""


@dataclass(frozen=True, slots=True)
class Formats:
    """Block formats that read rows in the same format on each backend; None if not supported."""

    names: list[str]
    bits_per_weight: list[float]
    rows: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class ArchitectureSupport:
    """The kernels that an architecture launches, and the ones that each backend lacks."""

    name: str
    kernels: list[str]
    missing: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Support:
    """The result of `collect`. products: the kernels that multiply with block formats."""

    formats: list[Formats]
    architectures: list[ArchitectureSupport]
    products: list[str]

    @property
    def common(self) -> list[str]:
        """Return the kernels that every architecture needs."""
        sets = [set(a.kernels) for a in self.architectures]
        return sorted(set.intersection(*sets))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usage.add_json(parser)
    parser.add_argument(
        "--markdown", action="store_true", help="print the page docs/reference/support.md"
    )


def run(args: argparse.Namespace) -> int:
    if args.json and args.markdown:
        raise UsageError("give either --json or --markdown")
    if args.markdown:
        print(markdown(collect(PORTABLE)), end="")
        return 0
    options = usage.backend_options(args)
    found, devices = collect(options), _devices(options)
    if args.json:
        json.dump({"backends": devices, **asdict(found)}, sys.stdout, indent=2)
        print()
    else:
        print(report(found, devices))
    return 0


def collect(options: Mapping[str, str] | None = None) -> Support:
    """Ask all backends for their kernels, and plan every architecture.

    Raises DeviceError if a backend was not built.
    """
    from zinc.backends import api
    from zinc.backends.capabilities import BackendKind
    from zinc.models import architectures

    found = (api.kernels(name, options) for name in api.discover())
    backends = [each for each in found if each.capabilities.kind is not BackendKind.DRY_RUN]
    needs = {name: _needs(name, backends) for name in architectures()}
    return Support(
        formats=_formats(backends),
        architectures=[
            ArchitectureSupport(
                name,
                sorted(set().union(*(kernels for kernels, _ in each.values()))),
                {b.name: sorted(k for k in each[b.name][0] if not b.supports(k)) for b in backends},
            )
            for name, each in needs.items()
        ],
        products=sorted(
            {k for each in needs.values() for _, products in each.values() for k in products}
        ),
    )


class _EveryKernel:
    """The kernels of `backend`, plus every kernel that it lacks, so that any plan can be made."""

    split = None

    def __init__(self, backend: Kernels) -> None:
        self.backend, self.name = backend, backend.name
        self.capabilities = backend.capabilities

    def row_format(self, type: GGMLType) -> RowFormat:
        return self.backend.row_format(type)

    def supports(self, kernel: str) -> bool:
        return True

    def stores(self, kernel: str, format: RowFormat) -> bool:
        return self.backend.stores(kernel, format)

    def row_bytes(self, format: RowFormat, cols: int) -> int:
        return self.backend.row_bytes(format, cols)

    def runs_fused(self, node: Node) -> StepCondition | None:
        return self.backend.runs_fused(node)


def _needs(name: str, backends: Iterable[Kernels]) -> dict[str, tuple[set[str], set[str]]]:
    """Return the kernels of an architecture's plans by backend.

    An entry holds all kernels, and the kernels that read matrices.
    """
    from zinc.models.parts import probe
    from zinc.ops.values import Weight
    from zinc.plan.planner import make_plan

    found: dict[str, tuple[set[str], set[str]]] = {}
    for backend in backends:
        kernels: set[str] = set()
        products: set[str] = set()
        for graph in probe.graphs(name, _quantised(backend)):
            plan = make_plan(graph, _EveryKernel(backend), max_tokens=1, max_outputs=1)
            for launch in plan.launches:
                kernels.add(launch.kernel)
                if any(isinstance(x, Weight) and not x.is_vector for x in launch.inputs):
                    products.add(launch.kernel)
        found[backend.name] = kernels, products
    return found


def _quantised(backend: Kernels) -> GGMLType:
    """Return a block format whose products read quantised rows, if the backend has one."""
    from zinc.ops.values import RowFormat
    from zinc.quant.blocks import GGMLType

    formats = {type: _rows(backend, type) for type in GGMLType}
    return next(
        (t for t, format in formats.items() if format not in (None, RowFormat.F32)), GGMLType.F32
    )


def _rows(backend: Kernels, type: GGMLType) -> str | None:
    try:
        return str(backend.row_format(type))
    except ZincError:
        return None


def _formats(backends: Sequence[Kernels]) -> list[Formats]:
    """Return the formats, grouped by equal entries; the ones most backends read come first."""
    from zinc.quant.blocks import BLOCKS, GGMLType

    groups: dict[tuple[str | None, ...], list[GGMLType]] = {}
    for type in sorted(GGMLType, key=lambda t: -BLOCKS[t].bits_per_element):
        groups.setdefault(tuple(_rows(b, type) for b in backends), []).append(type)
    ordered = sorted(groups.items(), key=lambda item: item[0].count(None))
    return [
        Formats(
            [t.name for t in types],
            [BLOCKS[t].bits_per_element for t in types],
            {b.name: format for b, format in zip(backends, formats, strict=True)},
        )
        for formats, types in ordered
    ]


def _devices(options: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return, for each backend, whether its device is on this machine."""
    from zinc.backends.capabilities import BackendKind
    from zinc.cli import machine

    devices: dict[str, dict[str, Any]] = {}
    for name, backend in machine.backends(options=options):
        if isinstance(backend, ZincError):
            devices[name] = {"ready": False, "description": backend.in_options()}
        elif backend.capabilities.kind is not BackendKind.DRY_RUN:
            devices[name] = {"ready": True, "description": backend.describe()}
    return devices


def report(found: Support, devices: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables for a terminal."""
    states = [
        (name, "ready" if d["ready"] else "not on this machine", d["description"])
        for name, d in devices.items()
    ]
    return "\n\n".join(
        (
            table(("backend", "", ""), states),
            _wrapped(*_format_table(found)),
            f"kernels that read these: {', '.join(found.products)}",
            table(*_architecture_table(found)),
            f"kernels of every architecture: {', '.join(found.common)}",
        )
    )


def _wrapped(header: Sequence[str], rows: Rows) -> str:
    """Return a table whose first column, a list, is wrapped."""
    lines: Rows = []
    for first, *cells in rows:
        names = textwrap.wrap(str(first), LIST_WIDTH)
        lines.append((names[0], *cells))
        lines += [(more, *[""] * len(cells)) for more in names[1:]]
    return table(header, lines)


def markdown(found: Support) -> str:
    return "\n".join(
        (
            INTRODUCTION,
            "## Block formats",
            "",
            "The format of the rows that a product with such weights reads, by backend",
            f"({NONE}: there is no kernel). The kernels:",
            f"{', '.join(f'`{name}`' for name in found.products)}.",
            "",
            _markdown_table(*_format_table(found)),
            "",
            "## Architectures",
            "",
            "By `general.architecture` of the file. Every one needs",
            f"{', '.join(f'`{name}`' for name in found.common)}.",
            "",
            _markdown_table(*_architecture_table(found)),
            "",
        )
    )


def _format_table(found: Support) -> tuple[tuple[str, ...], Rows]:
    backends = list(found.formats[0].rows)
    rows: Rows = []
    for group in found.formats:
        least, most = min(group.bits_per_weight), max(group.bits_per_weight)
        bits = f"{most:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
        cells = [group.rows[name] or NONE for name in backends]
        rows.append((", ".join(group.names), bits, *cells))
    return ("block format", "bits a weight", *backends), rows


def _architecture_table(found: Support) -> tuple[tuple[str, ...], Rows]:
    backends = list(found.architectures[0].missing)
    rows: Rows = []
    for arch in found.architectures:
        own = [name for name in arch.kernels if name not in found.common]
        cells = [
            f"without {', '.join(missing)}" if missing else "all kernels"
            for missing in (arch.missing[name] for name in backends)
        ]
        rows.append((arch.name, ", ".join(own) or NONE, *cells))
    return ("architecture", "kernels beside the common ones", *backends), rows


def _markdown_table(header: Sequence[str], rows: Rows) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
