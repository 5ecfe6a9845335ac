"""Running commands in this process, on the fastest backend that runs the embedded model."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from present import of_embedded_model

from zinc.backends.capabilities import Roofline
from zinc.backends.cpu import CpuBackend
from zinc.cli.main import main

DATA = Path(__file__).parent.parent / "data"


measure = CpuBackend.measure


@cache
def measured(threads: int) -> Roofline:
    return measure(CpuBackend(threads=threads))


@pytest.fixture(autouse=True)
def _quick_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the limits of the machine on small buffers, and those of the CPU once.

    No test looks at their values.
    """
    monkeypatch.setattr("zinc.backends.cpu.BANDWIDTH_BYTES", 1 << 24)
    monkeypatch.setattr(CpuBackend, "measure", lambda backend: measured(backend.threads))
    monkeypatch.setattr("zinc.backends.vulkan.limits.SOFTWARE_BUFFER_BYTES", 1 << 24)


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ZINC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def zinc(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Return a function that runs a command: zinc("run", "hello", stdin=b"...") -> Result."""

    def run(*argv: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        capsys.readouterr()
        status = main([str(a) for a in argv])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def backend() -> str:
    """The CPU backend if it has all kernels of the embedded model, else `ref`."""
    return of_embedded_model()


@pytest.fixture
def fixture_model() -> Path:
    """A tiny random qwen3 without a tokenizer."""
    return DATA / "fixtures" / "qwen3.gguf"
