"""Fixtures: a hub on loopback, and a home of its own for every test."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub.fake_hub import FakeHub

from zinc.hub.folders import Folders, folders
from zinc.hub.pull import PullOptions

CHUNK_BYTES = 16 << 10


def content(seed: int, n_bytes: int = 200_000) -> bytes:
    """Return bytes that differ for each seed."""
    return random.Random(seed).randbytes(n_bytes)


@pytest.fixture
def hub(monkeypatch) -> Iterator[FakeHub]:
    """The configured hub, with one repository of two quantisations."""
    server = FakeHub()
    server.add(
        "org/model-GGUF",
        {
            "model-Q4_K_M.gguf": content(1),
            "model-Q8_0.gguf": content(2, 400_000),
            "README.md": b"# model",
        },
    )
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    yield server
    server.close()


@pytest.fixture
def home(tmp_path, monkeypatch) -> Folders:
    """The folders of an empty home directory, which the environment names during the test."""
    for name in (
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_TOKEN",
        "LLAMA_CACHE",
        "OLLAMA_MODELS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folders()


@pytest.fixture
def options(home) -> PullOptions:
    """Options of a quick pull in small parts."""
    return PullOptions(chunk_bytes=CHUNK_BYTES, pause_s=0.01, folders=home)


def leftovers(folder: Path) -> list[Path]:
    """Return the files under `folder`, without lock files."""
    return [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"]
