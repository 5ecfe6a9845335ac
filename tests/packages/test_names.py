"""The distribution is named zinc-llm wherever a text tells readers to install it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from zinc.core import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEXTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "src/**/*.py", "dev/*", "Makefile", "Dockerfile")
    for path in ROOT.glob(pattern)
    if path.is_file()
]


def test_project_has_the_name_that_hints_use():
    assert PROJECT["name"] == extras.DISTRIBUTION
    assert PROJECT["scripts"] == {"zinc": "zinc.__main__:main"}


@pytest.mark.parametrize("extra", [extras.SERVER, extras.STRUCTURED])
def test_extras_of_hints_exist(extra):
    assert extra in PROJECT["optional-dependencies"]
    assert extras.install_command(extra) == f"pip install 'zinc-llm[{extra}]'"


def test_no_text_installs_the_package_of_another_project():
    """The name `zinc` on PyPI belongs to another project."""
    pattern = re.compile(r"pip3? install[^\n]*?[ '\"]zinc(?![\w-]|/)|\bzinc\[\w+")
    assert pattern.search("pip install 'zinc[server]'")
    assert [path for path in TEXTS if pattern.search(path.read_text())] == []


def test_install_command_without_an_extra():
    assert extras.install_command() == "pip install zinc-llm"
