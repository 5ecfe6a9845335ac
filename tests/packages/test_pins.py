"""Versions that several files name are the same in all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def found(pattern, *names):
    """Return what `pattern` finds in each of the files."""
    return {name: re.findall(pattern, (ROOT / name).read_text()) for name in names}


def test_one_version_of_the_slang_compiler():
    files = (
        "Makefile",
        "Dockerfile",
        "dev/wheels",
        ".github/workflows/wheels.yml",
        "docs/apple.md",
        "docs/install.md",
        "src/zinc/backends/vulkan/shaders.py",
    )
    versions = found(r"slangtorch==([\d.]+)", *files)
    assert all(versions.values()), versions
    assert len({version for each in versions.values() for version in each}) == 1, versions


def test_tested_versions_of_python_are_those_of_the_classifiers():
    text = (ROOT / ".github/workflows/test.yml").read_text()
    matrix = re.search(r"python: \[(.*)\]", text)
    assert matrix
    classified = [
        version[1]
        for line in PROJECT["project"]["classifiers"]
        if (version := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
    ]
    assert re.findall(r'"([\d.]+)"', matrix[1]) == classified
    assert PROJECT["project"]["requires-python"] == f">={classified[0]}"


def test_wheels_are_built_for_every_version_of_python():
    """Python 3.12 and later share the wheel of the stable ABI; an older one needs its own."""
    stable = PROJECT["tool"]["scikit-build"]["wheel"]["py-api"]
    oldest = "cp" + PROJECT["project"]["requires-python"].removeprefix(">=").replace(".", "")
    own = {f"cp3{minor}" for minor in range(int(oldest[3:]), int(stable[3:]))}
    built = {build.removesuffix("-*") for build in PROJECT["tool"]["cibuildwheel"]["build"]}
    assert built == {*own, stable}
