"""Weights reach a backend unchanged, however they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zinc.backends import cpu
from zinc.engine.load.weights import upload
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.plan.planner import make_plan

FIXTURES = Path(__file__).parents[1] / "data/fixtures"


def weights(family: str) -> dict[str, np.ndarray]:
    with GGUFFile.open(FIXTURES / f"{family}.gguf") as file:
        _, graph = load(file)
        backend = cpu.create(threads=1)
        upload(file, make_plan(graph, backend, max_tokens=8, max_outputs=1).weights, backend)
        return {name: tensor.to_float32() for name, tensor in backend.weights.items()}


@pytest.mark.parametrize("family", ["phi3", "gemma4moe", "qwen3moe", "gptoss", "deepseek2"])
@pytest.mark.parametrize("chunk_bytes", [1, 40_000])
def test_chunks_of_any_size_make_the_same_weights(family, chunk_bytes, monkeypatch):
    """Whole matrices, rows of stacked ones, and experts."""
    expected = weights(family)
    monkeypatch.setattr(cpu, "CHUNK_BYTES", chunk_bytes)
    found = weights(family)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
