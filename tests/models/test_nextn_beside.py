"""NextN blocks in a file `mtp-*.gguf` beside the model."""

from __future__ import annotations

from pathlib import Path

import pytest
from models.harness import FIXTURES, rewrite
from models.nextn_files import FAMILIES, with_nextn

from zinc.core.errors import ModelError
from zinc.engine.identity import TensorDigests
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.planning import plan_model
from zinc.formats.gguf import GGUFArray, GGUFFile
from zinc.llm import LLM
from zinc.models.parts.weights import block_of

SHARED = ("token_embd.weight", "output_norm.weight", "output.weight")


def divided(whole: Path, folder: Path) -> Path:
    """Write the model and the NextN blocks of a file as llama.cpp's converter does, apart.

    The file of the blocks has the embedding, final norm and head too. Returns the model's path.
    """
    with GGUFFile.open(whole) as file:
        arch = file.str("general.architecture")
        n_layers = file.int(f"{arch}.block_count") - 1
        blocks = {name: block_of(name) for name in file.tensors}
        arrays = {
            key: value.to_list()[:n_layers]
            for key, value in file.metadata.items()
            if isinstance(value, GGUFArray) and len(value) == n_layers + 1
        }
    of_block = [name for name, block in blocks.items() if block == n_layers]
    rewrite(
        whole,
        folder / "mtp-model.gguf",
        tensors={n: None for n in blocks if n not in (*of_block, *SHARED)},
    )
    return rewrite(
        whole,
        folder / "model.gguf",
        metadata={f"{arch}.block_count": n_layers, **arrays},
        drop=[f"{arch}.nextn_predict_layers"],
        tensors=dict.fromkeys(of_block),
    )


@pytest.mark.alike(5)
@pytest.mark.parametrize("name", FAMILIES)
def test_plans_are_those_of_a_file_with_both(name: str, tmp_path: Path) -> None:
    whole = with_nextn(name, tmp_path / "whole.gguf")
    beside = divided(whole, tmp_path)
    plans = []
    for path in (whole, beside):
        options = LoadOptions(path, backend="cpu", speculate="mtp", context=64)
        with plan_model(options) as planned:
            assert planned.draft_plans
            plans.append([plan.hash for plan in planned.all_plans])
            tensors = {w.tensor for plan in planned.all_plans for w in plan.weights}
            plans[-1] += [planned.file.tensors[n].to_float32().tobytes() for n in sorted(tensors)]
            plans[-1].append(planned.spec)
    assert plans[0] == plans[1]


def test_answers_and_drafts_are_those_of_a_file_with_both(tmp_path: Path) -> None:
    whole = with_nextn("qwen35", tmp_path / "whole.gguf")
    found = []
    for path in (whole, divided(whole, tmp_path)):
        with LLM(path, backend="cpu", speculate="mtp", context=128, kv_dtype="f16") as llm:
            answer = llm.generate("the", max_tokens=40, temperature=0)
            found.append((answer.text, llm.memory.weights_bytes))
    assert found[0] == found[1]


def test_blocks_of_another_model_are_left_alone(tmp_path: Path) -> None:
    divided(with_nextn("qwen35", tmp_path / "whole.gguf"), tmp_path)
    other = rewrite(FIXTURES / "qwen3.gguf", tmp_path / "other.gguf")
    with plan_model(LoadOptions(other, backend="cpu", context=64)) as planned:
        assert not planned.draft_plans
    with pytest.raises(ModelError, match=r"mtp-model\.gguf are not of .*other\.gguf") as caught:
        plan_model(LoadOptions(other, backend="cpu", speculate="mtp"))
    assert "no NextN block of the architecture 'qwen3'" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("block_count", 9, "it is of a model with 8 layers, not 4"),
        ("embedding_length", 96, "its rows have 96 columns, not 64"),
        ("nextn_predict_layers", 0, "it has no NextN block"),
    ],
)
def test_blocks_of_other_sizes_are_refused(key: str, value: int, why: str, tmp_path: Path) -> None:
    model = divided(with_nextn("qwen35", tmp_path / "whole.gguf"), tmp_path)
    blocks = tmp_path / "mtp-model.gguf"
    rewrite(blocks, tmp_path / "changed.gguf", metadata={f"qwen35.{key}": value})
    (tmp_path / "changed.gguf").replace(blocks)
    with pytest.raises(ModelError, match=why):
        plan_model(LoadOptions(model, backend="cpu", speculate="mtp"))
    with plan_model(LoadOptions(model, backend="cpu", context=64)) as planned:
        assert not planned.draft_plans


def test_the_cache_on_disk_is_one_of_both_files(tmp_path: Path) -> None:
    model = divided(with_nextn("qwen35", tmp_path / "whole.gguf"), tmp_path)
    digests = []
    for mode in ("mtp", "off"):
        options = LoadOptions(model, backend="cpu", speculate=mode, context=64)
        with plan_model(options) as planned:
            digests.append(TensorDigests(planned.file, tmp_path / "digests").finish())
    assert digests[0] != digests[1]
