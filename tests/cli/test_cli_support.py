"""`zinc support` agrees with the code: its page, its tables, and the probes behind them."""

from __future__ import annotations

import json
from functools import cache
from itertools import cycle, product
from pathlib import Path

import effort
import pytest
from shared import once

from zinc.backends import api
from zinc.cli import support
from zinc.core.errors import DeviceError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models import architectures, load
from zinc.models.parts import probe
from zinc.plan.planner import make_plan
from zinc.quant.blocks import GGMLType
from zinc.testing.parity import every_case, is_for

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "support.md"
FIXTURES = sorted((ROOT / "tests" / "data" / "fixtures").glob("*.gguf"))


# Recurrent layers, experts, both and neither: planning all architectures takes seconds.
FEW = ["llama", "qwen35", "qwen3moe", "qwen3next"]


@cache
def has_portable_level() -> bool:
    """Return whether the CPU backend was built with the level of docs/reference/support.md."""
    try:
        api.kernels("cpu", support.PORTABLE)
    except DeviceError:
        return False
    return True


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> support.Support:
    """The tables of the page, or of this machine if the level of the page is not built."""
    options = support.PORTABLE if has_portable_level() else None
    return once(tmp_path_factory, "support", lambda: support.collect(options))


@pytest.fixture
def few_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zinc.models.architectures", lambda: FEW)


@pytest.mark.skipif(not has_portable_level(), reason="the portable level is not built")
def test_the_page_is_what_the_command_prints(zinc, found, monkeypatch) -> None:
    monkeypatch.setattr(
        support, "collect", lambda options: found if options == support.PORTABLE else None
    )
    assert zinc("support", "--markdown").out == PAGE.read_text(), (
        "docs/reference/support.md is out of date: zinc support --markdown > it"
    )


def test_every_level_of_the_cpu_has_the_same_kernels_and_formats() -> None:
    from zinc.backends.cpu import _cpu

    facts = {
        (
            tuple(sorted(_cpu.kernels(level))),
            tuple(t for t in GGMLType if _cpu.packable(level, t.name)),
        )
        for level in _cpu.levels()
    }
    assert len(facts) == 1


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_every_kernel_that_a_model_needs_is_in_the_table(path, found) -> None:
    with GGUFFile.open(path) as file:
        spec, graph = load(file)
        plan = make_plan(graph, api.kernels("ref"), max_tokens=4, max_outputs=1)
    (entry,) = (a for a in found.architectures if a.name == spec.arch)
    assert {launch.kernel for launch in plan.launches} <= set(entry.kernels)


def test_every_kernel_that_an_architecture_needs_has_a_case(found) -> None:
    missing = {kernel for arch in found.architectures for kernel in arch.kernels}
    for kernels in map(api.kernels, ("cpu", "vulkan", "cuda")):
        for op, case in every_case():
            if missing and is_for(kernels, op, case):
                plan = make_plan(case.graph, kernels, max_tokens=case.n_tokens, max_outputs=8)
                missing -= {launch.kernel for launch in plan.launches}
    assert not missing


def test_every_pair_of_architecture_and_format_matches_the_tables(found) -> None:
    """Plans each format with two architectures, and each architecture with some formats.

    By default the backends take turns: each plans a format with one of its architectures.
    """
    missing = {a.name: a.missing for a in found.architectures}
    pairs = list(zip(cycle(architectures()), product(range(2), GGMLType)))
    for arch, (turn, type) in pairs:
        rows = next(group.rows for group in found.formats if type.name in group.names)
        for backend in rows if effort.EVERY else [*rows][turn::2]:
            runs = rows[backend] is not None and not missing[arch][backend]
            for graph in probe.graphs(arch, type):
                if not runs:
                    with pytest.raises(UnsupportedError):
                        make_plan(graph, api.kernels(backend), max_tokens=1, max_outputs=1)
                    break
                make_plan(graph, api.kernels(backend), max_tokens=1, max_outputs=1)


def test_a_missing_kernel_is_named_where_it_is_needed(monkeypatch, few_architectures) -> None:
    class Lacking(type(api.kernels("ref"))):
        def supports(self, kernel: str) -> bool:
            return kernel not in ("delta_rule", "route")

    whole = api.kernels
    monkeypatch.setattr(
        api, "kernels", lambda name, options=None: Lacking() if name == "ref" else whole(name)
    )
    text = support.markdown(support.collect())
    (header,) = (line for line in text.splitlines() if line.startswith("| architecture"))
    column = header.split(" | ").index("ref")
    cells = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[column].strip(" |")
        for line in text.splitlines()
        if line.startswith("| ")
    }
    assert cells["llama"] == "all kernels"
    assert cells["qwen35"] == "without delta_rule"
    assert cells["qwen3moe"] == "without route"
    assert cells["qwen3next"] == "without delta_rule, route"


def test_a_backend_without_its_device_is_listed(zinc, monkeypatch, few_architectures) -> None:
    page = zinc("support", "--markdown").out
    whole = api.create

    def create(name, threads=None, options=None):
        if name == "cpu":
            raise DeviceError("there is no processor")
        return whole("ref")

    monkeypatch.setattr(api, "create", create)
    lines = zinc("support").out.splitlines()
    (line,) = (line for line in lines if line.startswith("cpu "))
    assert "not on this machine" in line
    assert "there is no processor" in line
    assert zinc("support", "--markdown").out == page


def test_json_has_the_same_content(zinc, found, monkeypatch) -> None:
    monkeypatch.setattr(support, "collect", lambda options: found)
    data = json.loads(zinc("support", "--json").out)
    assert [a["name"] for a in data["architectures"]] == list(architectures())
    assert sum(len(group["names"]) for group in data["formats"]) == len(GGMLType)
    assert data["products"] == found.products
    assert zinc("support", "--json", "--markdown").status == 2
