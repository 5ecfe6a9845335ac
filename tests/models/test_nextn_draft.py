"""The graph of a NextN block, against the block's definition in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import on_backends
from models.harness import BACKENDS as DEVICES
from models.harness import FIXTURES, MAX_TOKENS, Runner, expected, relative_error, rewrite
from models.nextn_files import FAMILIES, with_nextn
from models.nextn_oracle import Block

from zinc.backends import api
from zinc.backends.api import Backend
from zinc.backends.plans import Plan
from zinc.core.errors import ModelError, UnsupportedError, ZincError
from zinc.formats.gguf import GGUFFile
from zinc.gpu import program as gpu_program
from zinc.models import load, load_drafts
from zinc.ops.graph import Graph
from zinc.ops.values import Dim
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data

BACKENDS = [name for name in DEVICES if api.kernels(name).capabilities.host_rows]
TOLERANCE = {name: 1e-5 if name == "ref" else 3e-3 for name in BACKENDS}


def planned(file: GGUFFile, graph: Graph, name: str) -> tuple[Backend, Plan]:
    backend = api.create(name)
    plan = make_plan(graph, backend, max_tokens=MAX_TOKENS, max_outputs=MAX_TOKENS)
    for w in plan.weights:
        backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    return backend, plan


def assert_equals_the_oracle(path: Path, backend: str) -> None:
    """Rows in two chunks, and then four rows of the chain, which read the block's own rows."""
    rng = np.random.default_rng(3)
    with GGUFFile.open(path) as file:
        spec, _ = load(file)
        loaded = planned(file, load_drafts(file)[0][0], backend)
        runner = Runner(path, loaded=loaded)
        program, plan = runner.program, loaded[1]
        assert plan.given is not None
        assert plan.hidden is not None
        assert [state.name for state in plan.states] == [f"blk.{spec.n_layers}"]
        ids = rng.integers(spec.vocab, size=30).astype(np.int32)
        given = rng.standard_normal((26, spec.hidden)).astype(np.float32)
        logits: list[np.ndarray] = []
        for part in (slice(0, 17), slice(17, 26)):
            program.write(plan.given, given[part])
            logits += runner.feed((0, ids[part]))
        for i in range(26, 30):
            own = program.read(plan.hidden, len(logits[-1]))[-1:]
            given = np.concatenate([given, own])
            program.write(plan.given, own)
            logits += runner.feed((0, ids[i : i + 1]))
        last = program.read(plan.hidden, 1)
        want, hidden = Block(file, spec.n_layers).rows(ids, given.astype(np.float64))
    assert relative_error(np.concatenate(logits), want) <= TOLERANCE[backend]
    assert relative_error(last, hidden[-1:]) <= TOLERANCE[backend]


@pytest.mark.parametrize(
    ("name", "backend"), on_backends(FAMILIES, BACKENDS, everywhere=["qwen35"], always=("ref",))
)
def test_logits_and_chained_rows_equal_the_definition(
    name: str, backend: str, tmp_path: Path
) -> None:
    assert_equals_the_oracle(with_nextn(name, tmp_path / "m.gguf"), backend)


@pytest.mark.alike(5)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_block_may_have_its_own_embedding_norm_and_head(name: str, tmp_path: Path) -> None:
    assert_equals_the_oracle(with_nextn(name, tmp_path / "m.gguf", shared=False), "ref")


def test_a_block_may_have_no_mlp(tmp_path: Path) -> None:
    assert_equals_the_oracle(with_nextn("qwen35", tmp_path / "m.gguf", mlp=False), "ref")


def test_the_embedding_is_the_head_of_a_model_without_one(tmp_path: Path) -> None:
    path = with_nextn("qwen35", tmp_path / "m.gguf")
    tied = rewrite(path, tmp_path / "tied.gguf", tensors={"output.weight": None})
    assert_equals_the_oracle(tied, "ref")


@pytest.mark.parametrize(
    ("name", "backend"),
    on_backends(["qwen35", "deepseek2v3"], BACKENDS, everywhere=["qwen35"], always=("ref", "cpu")),
)
def test_a_trimmed_head_gives_the_logits_of_some_tokens(
    name: str, backend: str, tmp_path: Path
) -> None:
    """A quarter of the vocabulary, and a special token beyond it."""
    rng = np.random.default_rng(3)
    path = with_nextn(name, tmp_path / "m.gguf")
    with GGUFFile.open(path) as file:
        vocab = load(file)[0].vocab
    kinds = [1] * vocab
    kinds[7] = kinds[vocab - 3] = 3
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.token_type": kinds}
    path = rewrite(path, tmp_path / "bpe.gguf", metadata=keys)
    with GGUFFile.open(path) as file:
        spec, _ = load(file)
        (graph,), tokens = load_drafts(file, n_tokens=vocab // 4)
        assert tokens == (*range(vocab // 4), vocab - 3)
        assert load_drafts(file, n_tokens=vocab // 2 + 1)[1] == ()
        loaded = planned(file, graph, backend)
        runner = Runner(path, loaded=loaded)
        assert loaded[1].given is not None
        ids = rng.integers(vocab, size=9).astype(np.int32)
        given = rng.standard_normal((9, spec.hidden)).astype(np.float32)
        runner.program.write(loaded[1].given, given)
        (logits,) = runner.feed((0, ids))
        want, _ = Block(file, spec.n_layers).rows(ids, given.astype(np.float64))
    assert relative_error(logits, want[:, list(tokens)]) <= TOLERANCE[backend]


def test_the_head_of_another_kind_of_vocabulary_is_not_trimmed(tmp_path: Path) -> None:
    """Only byte-pair vocabularies are in the order of frequency."""
    path = with_nextn("qwen35", tmp_path / "m.gguf")
    keys = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.token_type": [1] * 512}
    with GGUFFile.open(rewrite(path, tmp_path / "spm.gguf", metadata=keys)) as file:
        assert load_drafts(file, n_tokens=100)[1] == ()


@pytest.mark.alike(14)
@pytest.mark.parametrize(
    ("name", "backend"),
    on_backends(FAMILIES, BACKENDS, everywhere=["qwen35"], always=("ref", "cpu")),
)
def test_hidden_rows_are_the_rows_that_the_head_reads(
    name: str, backend: str, tmp_path: Path
) -> None:
    """They are those after the final norm, of every token, and logits keep their bits.

    Blocks of Step 3.5 read the rows before it.
    """
    path = FIXTURES / f"{name}.gguf"
    ids, _ = expected(name)
    with GGUFFile.open(path) as file:
        plain = Runner(path, loaded=planned(file, load(file)[1], backend))
        spec, graph = load(file, hidden=True)
        runner = Runner(path, loaded=planned(file, graph, backend))
        head = (file.tensors.get("output.weight") or file.tensors["token_embd.weight"]).to_float32()
        final = file.tensors["output_norm.weight"].to_float32()
    hidden = runner.program.plan.hidden
    assert hidden is not None
    assert hidden.dim is Dim.TOKENS
    rows = [0, 3, len(ids) - 1]
    logits = runner.feed_for(rows, (0, ids))
    want = plain.feed_for(rows, (0, ids))
    if backend == "cpu":
        np.testing.assert_array_equal(logits, want)
    assert relative_error(logits, want) <= 1e-5
    kept = runner.program.read(hidden, len(ids))
    assert kept.shape == (len(ids), spec.hidden)
    assert spec.raw_nextn == (name == "step35")
    if spec.raw_nextn:
        kept = kept / np.sqrt((kept * kept).mean(axis=1, keepdims=True) + spec.eps) * final
    assert relative_error(kept[rows] @ head.T, logits) <= TOLERANCE[backend]


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in ("ref", "cpu")])
def test_a_device_copies_the_rows_of_short_steps_with_the_step(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of long steps are copied when they are read; either way they are the same."""
    path, (ids, _) = FIXTURES / "qwen35.gguf", expected("qwen35")
    found, n_reads = [], []
    for most_bytes in (gpu_program.MAX_HIDDEN_BYTES, 0):
        monkeypatch.setattr(gpu_program, "MAX_HIDDEN_BYTES", most_bytes)
        with GGUFFile.open(path) as file:
            loaded = planned(file, load(file, hidden=True)[1], backend)
        runner, host = Runner(path, loaded=loaded), loaded[0].host
        read, calls = host.read, []
        monkeypatch.setattr(host, "read", lambda *a, read=read, c=calls: (c.append(a), read(*a))[1])
        hidden = runner.program.plan.hidden
        assert hidden is not None
        rows = []
        for part in (ids[:9], ids[9:10], ids[10:14]):
            runner.feed((0, part))
            rows.append(runner.program.read(hidden, len(part)))
        monkeypatch.undo()
        found.append(np.concatenate(rows))
        n_reads.append(len(calls))
    np.testing.assert_array_equal(*found)
    assert n_reads == [0, 3]


# -- Errors ---------------------------------------------------------------------------------------


def error_of(path: Path) -> ZincError:
    with GGUFFile.open(path) as file:
        load(file)  # the model itself runs
        with pytest.raises(ZincError, match="cannot draft tokens with the NextN block") as info:
            load_drafts(file)
    return info.value


def test_a_model_without_a_block_is_refused() -> None:
    error = error_of(FIXTURES / "qwen35.gguf")
    assert isinstance(error, UnsupportedError)
    assert "neither it nor a file mtp-*.gguf beside it has one" in error.why


def test_a_block_that_the_metadata_counts_and_the_file_lacks_is_refused(tmp_path: Path) -> None:
    keys = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    path = rewrite(FIXTURES / "qwen35.gguf", tmp_path / "m.gguf", metadata=keys)
    assert "neither it nor a file mtp-*.gguf beside it has one" in error_of(path).why


@pytest.mark.parametrize(
    "missing",
    [
        ("nextn.enorm.weight", "nextn.hnorm.weight"),
        ("attn_k.weight",),
        ("ffn_up.weight",),
        ("post_attention_norm.weight",),
    ],
)
def test_missing_tensors_are_named(missing: tuple[str, ...], tmp_path: Path) -> None:
    path = with_nextn("qwen35", tmp_path / "m.gguf")
    dropped = {f"blk.4.{name}": None for name in missing}
    error = error_of(rewrite(path, tmp_path / "less.gguf", tensors=dropped))
    assert isinstance(error, ModelError)
    assert all(name in error.why for name in dropped)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    path = with_nextn("qwen35", tmp_path / "m.gguf")
    extra = {"blk.4.nextn.gate.weight": np.ones(64, np.float32)}
    error = error_of(rewrite(path, tmp_path / "more.gguf", tensors=extra))
    assert "does not know what the tensor blk.4.nextn.gate.weight does" in error.why


def test_a_family_without_code_for_its_block_is_refused(tmp_path: Path) -> None:
    error = error_of(with_nextn("qwen3moe", tmp_path / "m.gguf"))
    assert "does not run the NextN block of qwen3moe models" in error.why


def test_a_backend_that_cannot_exchange_rows_is_refused(tmp_path: Path) -> None:
    kernels = api.kernels("null")
    kernels.capabilities = replace(kernels.capabilities, host_rows=False)
    with GGUFFile.open(with_nextn("qwen35", tmp_path / "m.gguf")) as file:
        for graph in (load_drafts(file)[0][0], load(file, hidden=True)[1]):
            with pytest.raises(UnsupportedError, match="backend null cannot draft tokens"):
                make_plan(graph, kernels, max_tokens=4, max_outputs=4)
