"""The import table of docs/layout.md, held against the code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import zinc

ROOT = Path(zinc.__file__).parent
DOC = Path(__file__).parent.parent / "docs" / "layout.md"


def table() -> dict[str, set[str]]:
    """Folder -> folders it may import, read from the table of the layout page."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", DOC.read_text(), re.MULTILINE)
    everything = {path.stem for path in ROOT.iterdir()}
    allowed = {name: set(re.findall(r"[\w.]+", words)) for name, words in rows}
    return {
        name: everything - words if "but" in words else words for name, words in allowed.items()
    }


@cache
def imports(path: Path) -> set[str]:
    """Return the modules of zinc that a file imports, type-checking imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "zinc.backends":
                found.update(f"zinc.backends.{alias.name}" for alias in node.names)
            else:
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.startswith("zinc.")}


def test_every_folder_is_in_the_table():
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders == set(table())


@pytest.mark.parametrize("folder", sorted(table()))
def test_a_folder_imports_only_what_the_table_allows(folder):
    allowed = table()[folder]
    if "anything" in allowed:
        return
    for path in (ROOT / folder).rglob("*.py"):
        for module in imports(path):
            target = module.split(".")[1]
            if target == folder or target in allowed:
                continue
            assert any(module == f"zinc.{a}" for a in allowed if "." in a), f"{path}: {module}"


# Modules of the folder backends that every backend may import.
SHARED = ("api", "capabilities", "micro_batches", "plans", "split_program", "step_queue")


def test_backends_do_not_import_each_other():
    for path in (ROOT / "backends").rglob("*.py"):
        own = path.relative_to(ROOT / "backends").parts[0]
        for module in imports(path):
            parts = module.split(".")
            if parts[1] == "backends" and len(parts) > 2:
                assert parts[2] in (own, *SHARED), f"{path} imports {module}"


def test_only_gpu_code_knows_how_dispatches_are_ordered_and_given_arguments() -> None:
    """Elsewhere reports may count dispatches and barriers (`StepCounts`), and nothing more."""
    known = re.compile(r"push.?constant|\bDispatch\b|\bbarrier\b|zinc\.gpu\.", re.IGNORECASE)
    backends = (path.parent for path in (ROOT / "backends").glob("*/__init__.py"))
    gpu = [ROOT / "gpu", *(x for x in backends if "zinc.gpu" in (x / "__init__.py").read_text())]
    for path in ROOT.rglob("*.py"):
        if not any(path.is_relative_to(folder) for folder in gpu):
            found = known.search(path.read_text())
            assert not found, f"{path} names {found.group()}"


def test_importing_zinc_loads_nothing_heavy():
    heavy = "('numpy', 'tokenizers', 'jinja2')"
    code = f"import sys, zinc; print([m for m in {heavy} if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert out.stdout.strip() == "[]", out.stderr
