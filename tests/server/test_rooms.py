"""The imports between the folders of zinc.server, compared with docs/layout.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_layout import DOC, ROOT, imports

SERVER = ROOT / "server"
EVERYWHERE = {"config", "errors"}  # modules that every folder may import


def rules() -> dict[str, set[str]]:
    """Read the rules of docs/layout.md: the folders that each folder of the server may import."""
    block = re.search(r"```\nserver/\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert block is not None
    rows = (line.split() for line in block[1].splitlines())
    return {folder: {name.strip(",") for name in allowed} for folder, *allowed in rows}


def folder_of(path: Path) -> str:
    """Return the folder of a module or a file under `server`: `http`, `apis/openai`, ..."""
    parts = path.parts
    return "/".join(parts[:2]) if parts[0] == "apis" else parts[0]


def test_every_folder_has_a_rule():
    folders = {folder_of(p.parent.relative_to(SERVER)) for p in SERVER.glob("*/**/*.py")}
    assert folders - {"apis"} == set(rules())


@pytest.mark.parametrize("folder", sorted(rules()))
def test_a_folder_of_the_server_imports_only_what_the_layout_page_allows(folder: str):
    allowed = rules()[folder] | {folder} | EVERYWHERE
    for path in (SERVER / folder).rglob("*.py"):
        for module in imports(path):
            if module.startswith("zinc.server."):
                target = folder_of(Path(*module.split(".")[2:]))
                assert target in allowed, f"{path} imports {module}"
