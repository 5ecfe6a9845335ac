"""NextN blocks, which predict further tokens: listed by commands, but not planned or loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from models.harness import FIXTURES, rewrite

from zinc.backends import api
from zinc.cli.main import main
from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.models.parts.nextn import nextn_tensors
from zinc.plan.planner import make_plan

FAMILIES = ("qwen35", "qwen35moe", "qwen3next", "deepseek2v3", "glm4", "qwen3moe")
Tensors = dict[str, np.ndarray | None]


def with_nextn(name: str, target: Path, n: int = 1, *, mark: bool = True) -> Path:
    """Return the fixture with `n` NextN blocks added."""
    extra: Tensors = {}
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        arch, count = file.str("general.architecture"), 0
        count = file.int(f"{arch}.block_count")
        for i in range(count, count + n):
            for tensor in file.tensors.values():
                if tensor.name.startswith(f"blk.{count - 1}."):
                    moved = tensor.name.replace(f"blk.{count - 1}.", f"blk.{i}.")
                    extra[moved] = tensor.to_float32()
            if mark:
                extra[f"blk.{i}.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)
                extra[f"blk.{i}.nextn.enorm.weight"] = np.ones(64, np.float32)
    keys = {f"{arch}.block_count": count + n, f"{arch}.nextn_predict_layers": n}
    return rewrite(FIXTURES / f"{name}.gguf", target, metadata=keys, tensors=extra)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_nextn_blocks_do_not_change_the_plan(name: str, n: int, tmp_path: Path) -> None:
    null = api.create("null")
    with GGUFFile.open(FIXTURES / f"{name}.gguf") as file:
        before, graph = load(file)
        n_tensors = len(file.tensors)
        want = make_plan(graph, null, max_tokens=4, max_outputs=4)
    with GGUFFile.open(with_nextn(name, tmp_path / "m.gguf", n)) as file:
        spec, graph = load(file)
        assert (spec.n_layers, spec.n_nextn) == (before.n_layers, n)
        plan = make_plan(graph, null, max_tokens=4, max_outputs=4)
        kept = {tensor.name for tensor in nextn_tensors(file, spec)}
        assert plan.hash == want.hash
        assert not kept & {weight.tensor for weight in plan.weights}  # what a load uploads
        assert len(kept) == len(file.tensors) - n_tensors


def test_inspect_and_plan_list_nextn_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_nextn("qwen35", tmp_path / "m.gguf", 2)
    with GGUFFile.open(path) as file:
        n_bytes = sum(
            t.n_bytes for n, t in file.tensors.items() if n.startswith(("blk.4", "blk.5"))
        )
    found = []
    for command in (["inspect"], ["plan", "--backend", "ref"]):
        assert main([*command, str(path), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        found.append(data.get("memory", data))
        assert main([*command, str(path)]) == 0
        assert "blk.4, blk.5 (NextN)" in capsys.readouterr().out
    for memory in found:
        assert memory["nextn_blocks"] == ["blk.4", "blk.5"]
        assert memory["nextn_bytes"] == n_bytes
    assert main(["inspect", str(FIXTURES / "qwen35.gguf")]) == 0
    assert "NextN" not in capsys.readouterr().out


def test_a_file_without_its_nextn_blocks_runs(tmp_path: Path) -> None:
    keys = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    path = rewrite(FIXTURES / "qwen35.gguf", tmp_path / "m.gguf", metadata=keys)
    with GGUFFile.open(path) as file:
        spec, _ = load(file)
        assert (spec.n_layers, spec.n_nextn) == (4, 1)
        assert nextn_tensors(file, spec) == []


def test_a_layer_counted_as_a_nextn_block_is_refused(tmp_path: Path) -> None:
    path = with_nextn("qwen3moe", tmp_path / "m.gguf", mark=False)
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match=r"no tensor blk\.4\.nextn"):
        load(file)


def test_a_file_of_nextn_blocks_only_is_refused(tmp_path: Path) -> None:
    whole = with_nextn("qwen35", tmp_path / "whole.gguf")
    with GGUFFile.open(whole) as file:
        trunk: Tensors = {
            n: None for n in file.tensors if n.startswith(("blk.0", "blk.1", "blk.2"))
        }
        trunk |= {n: None for n in file.tensors if n.startswith("blk.3")}
    path = rewrite(whole, tmp_path / "m.gguf", tensors=trunk)
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedError, match="predict further"):
        load(file)
