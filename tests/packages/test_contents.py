"""Files of the package that wheels and the sdist contain."""

from __future__ import annotations

import fnmatch
import importlib.machinery
import importlib.util
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = (
    "zinc/backends/cuda/kernels/*.cu",
    "zinc/backends/cuda/kernels/*.cuh",
    "zinc/backends/vulkan/kernels/*.slang",
    "zinc/data/*.gguf",
    "zinc/hub/*.toml",
    "zinc/py.typed",
    "zinc/server/page/*.css",
    "zinc/server/page/*.html",
    "zinc/server/page/*.js",
    "zinc/server/page/*.svg",
)


def load_script():
    loader = importlib.machinery.SourceFileLoader("check_wheels", str(ROOT / "dev/check-wheels"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


check_wheels = load_script()


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Return the names in a wheel that was built without CMake, so without compiled files."""
    backend = pytest.importorskip("scikit_build_core.build")
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = backend.build_wheel(str(folder), {"wheel.cmake": "false", "wheel.py-api": "py3"})
    with zipfile.ZipFile(folder / name) as wheel:
        return wheel.namelist()


def test_a_wheel_lacks_only_what_cmake_adds(packed):
    without_local_build = [name for name in packed if not name.endswith(".so")]
    assert list(check_wheels.missing_in_wheel(without_local_build)) == list(check_wheels.COMPILED)


@pytest.mark.parametrize("pattern", DATA)
def test_a_wheel_contains_data(packed, pattern):
    assert fnmatch.filter(packed, pattern)


def test_a_wheel_contains_no_cpp_source(packed):
    assert not fnmatch.filter(packed, check_wheels.SOURCE_ONLY)


@pytest.mark.parametrize("pattern", DATA)
def test_missing_data_is_reported(pattern):
    names = set(check_wheels.source_files())
    lost = set(fnmatch.filter(names, pattern))
    assert lost <= set(check_wheels.missing_in_wheel(names - lost))
    in_sdist = [f"zinc_llm-1.0/src/{name}" for name in names - lost]
    assert set(check_wheels.missing_in_sdist(in_sdist)) == lost


def test_a_wheel_over_its_limit_fails(tmp_path, monkeypatch, capsys):
    names = [*check_wheels.source_files(), "zinc/backends/cpu/_cpu.abi3.so"]
    path = tmp_path / "zinc.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in [*names, "zinc/backends/vulkan/spirv/a.spv"]:
            wheel.writestr(name, "")
    assert check_wheels.main([path]) == 0
    monkeypatch.setattr(check_wheels, "WHEEL_LIMIT_BYTES", 1000)
    assert check_wheels.main([path]) == 1
    assert "over its limit" in capsys.readouterr().out
