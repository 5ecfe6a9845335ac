"""Hidden rows of the fixtures of encoders on every backend, compared with transformers."""

from __future__ import annotations

import numpy as np
import pytest
from effort import on_backends
from models.harness import BACKENDS, ENCODERS, FIXTURES, Runner, relative_error, rewrite

from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models import load

NAMES = sorted(path.stem for path in ENCODERS.glob("*.gguf"))
TOLERANCE = {"ref": 1e-5}
OTHERS = 1e-3

named = pytest.mark.parametrize("name", NAMES)
everywhere = pytest.mark.parametrize(
    ("name", "backend"),
    on_backends(NAMES, BACKENDS, everywhere=("bert", "jinabert3"), always=("ref", "cpu")),
)


def texts_of(name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the ids of each text of a fixture, and the hidden rows of the first one."""
    with np.load(ENCODERS / f"{name}.npz") as data:
        cuts = np.cumsum(data["lengths"])[:-1]
        return np.split(data["tokens"], cuts), data["hidden"]


def runner(name: str, backend: str, n_sequences: int = 1, fuse: bool = True) -> Runner:
    return Runner(ENCODERS / f"{name}.gguf", backend, n_sequences=n_sequences, fuse=fuse)


@everywhere
def test_hidden_rows_are_those_of_transformers(name: str, backend: str) -> None:
    (ids, *_), want = texts_of(name)
    (got,) = runner(name, backend).feed((0, ids))
    assert len(ids) > 64  # more than one block of keys
    assert relative_error(got, want) <= TOLERANCE.get(backend, OTHERS)


@everywhere
def test_texts_of_one_step_do_not_see_each_other(name: str, backend: str) -> None:
    ids = texts_of(name)[0][1:3]
    assert sum(map(len, ids)) <= 96
    together = runner(name, backend, n_sequences=2).feed(*enumerate(ids))
    for each, rows in zip(ids, together, strict=True):
        (alone,) = runner(name, backend).feed((0, each))
        assert relative_error(rows, alone) <= TOLERANCE.get(backend, OTHERS)


@named
def test_every_token_sees_the_tokens_after_it(name: str) -> None:
    ids = texts_of(name)[0][0].copy()
    (before,) = runner(name, "ref").feed((0, ids))
    ids[-2] += 1
    (after,) = runner(name, "ref").feed((0, ids))
    assert (np.abs(after - before).max(axis=1) > 1e-4).all()


@named
def test_fused_plan_equals_the_graph(name: str) -> None:
    ids = texts_of(name)[0][0]
    (unfused,) = runner(name, "ref", fuse=False).feed((0, ids))
    np.testing.assert_array_equal(runner(name, "ref").feed((0, ids))[0], unfused)


@named
def test_no_vector_of_a_fixture_is_neutral(name: str) -> None:
    with GGUFFile.open(ENCODERS / f"{name}.gguf") as file:
        for tensor in file.tensors.values():
            if len(tensor.shape) == 1:
                values = tensor.to_float32()
                assert len(values) == 1 or values.std() > 1e-3, tensor.name


def test_a_missing_norm_and_causal_attention_are_refused(tmp_path) -> None:
    path = ENCODERS / "bert.gguf"
    dropped = rewrite(path, tmp_path / "a.gguf", tensors={"blk.1.layer_output_norm.bias": None})
    with GGUFFile.open(dropped) as file, pytest.raises(ModelError, match=r"blk\.1\.layer_output"):
        load(file)
    causal = rewrite(path, tmp_path / "b.gguf", metadata={"bert.attention.causal": True})
    with GGUFFile.open(causal) as file, pytest.raises(UnsupportedError, match="causal"):
        load(file)


def test_a_decoder_without_causal_mask_is_an_encoder(tmp_path) -> None:
    """EuroBERT has the layers of EXAONE 3, whose files may say that they are not causal."""
    source = ENCODERS / "eurobert.gguf"
    with GGUFFile.open(source) as file:
        keys = [key for key in file.metadata if key.startswith("eurobert.")]
        renamed = {key.replace("eurobert", "exaone"): file.metadata[key] for key in keys}
    renamed["general.architecture"] = "exaone"
    path = rewrite(source, tmp_path / "a.gguf", metadata=renamed, drop=keys)
    (ids, *_), want = texts_of("eurobert")
    (got,) = Runner(path, "ref").feed((0, ids))
    assert relative_error(got, want) <= TOLERANCE["ref"]


@pytest.mark.parametrize("name", ["gemma3", "qwen35", "deepseek2"])
def test_layers_that_need_a_causal_mask_are_refused(name: str, tmp_path) -> None:
    path = FIXTURES / f"{name}.gguf"
    whole = rewrite(path, tmp_path / "a.gguf", metadata={f"{name}.attention.causal": False})
    with GGUFFile.open(whole) as file, pytest.raises(UnsupportedError, match="as decoders"):
        load(file)
