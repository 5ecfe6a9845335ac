"""CUDA kernels on the CPU emulator, against the numpy reference and published model code."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import emulated
from models.harness import ENCODERS, FIXTURES, MAX_TOKENS, Runner, expected
from ops.running import run

from zinc.backends import api
from zinc.backends.cuda import CudaKernels
from zinc.backends.cuda.tiles import gemm_mma
from zinc.formats.gguf import GGUFFile
from zinc.models import load
from zinc.plan.planner import make_plan
from zinc.plan.weights import tensor_data
from zinc.quant.blocks import BLOCKS
from zinc.testing.parity import case_tolerance, every_case, is_for

pytestmark = pytest.mark.skipif(emulated.COMPILER is None, reason="there is no g++")

CASES = every_case()
FORMATS = {block.name for block in BLOCKS.values()}
# g++ takes a second for each kernel, so by default the first case of an op runs, and of products
# those of a few formats.
QUICK_FORMATS = {"linear": ("Q4_K", "IQ2_S"), "embed": ("Q8_0",)}
QUICK_CASES = {
    "delta_rule-channels-floor",
    "sample-penalties-300",
    "attention-sinks",
    "attention-deep-one-rope-norm",
}  # of other kernels than the first case of the op
# Several kernels each, or kernels of test_cuda_recurrent.py.
SLOW_OPS = {"attention", "rope_attention", "moe_down", "moe_glu"}
SLOW_OPS |= {"delta_rule", "delta_step", "ssm_scan", "causal_conv"}
FIXTURE_TOLERANCE = 2e-3
ON_CUDA = (
    *("qwen3", "llama", "qwen3moe", "qwen35", "gptoss", "gpt2", "commandr", "phimoe"),
    *(
        "smollm3",
        "hunyuan",
        "mimo2",
        "afmoe",
        "granitemoe",
        "lfm2moe",
        "mamba2",
        "granitehybrid",
        "falconh1",
        "nemotronhlatent",
        "jamba",
    ),
    *("kimilinear", "bailingmoe3", "step35", "rwkv7", "laguna", "deepseek32", "glmdsa"),
    "gemma3n",
    "llama4",
    "mistral3",
    "mistral4",
)


def quick() -> set[int]:
    """Return the indices of the cases that run by default."""
    seen, chosen = set(), set()
    for index, (op, case) in enumerate(CASES):
        format = case.name.split("-")[0]
        key = op.name, format if format in QUICK_FORMATS.get(op.name, ()) else ""
        by_format = format in FORMATS and op.name in QUICK_FORMATS
        if key not in seen and not (by_format and not key[1]) and op.name not in SLOW_OPS:
            chosen.add(index)
            seen.add(key)
        if f"{op.name}-{case.name}" in QUICK_CASES:
            chosen.add(index)
    return chosen


QUICK = quick()
RUNS = [
    pytest.param(
        index, id=f"{op.name}-{case.name}", marks=[] if index in QUICK else pytest.mark.every
    )
    for index, (op, case) in enumerate(CASES)
    if is_for(CudaKernels(), op, case)
]


@pytest.mark.parametrize("index", RUNS)
def test_kernel_agrees_with_reference(index: int) -> None:
    op, case = CASES[index]
    got, want = run(emulated.backend(), case), run(api.create("ref"), case)
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) / np.linalg.norm(want) <= case_tolerance(
        op, case, CudaKernels()
    )


@pytest.mark.parametrize("n_rows", [pytest.param(40, marks=pytest.mark.every), 17])
def test_the_last_block_of_a_tile_adds_up_the_sums_of_all_splits(n_rows, monkeypatch) -> None:
    monkeypatch.setattr(gemm_mma, "with_splits", lambda _, tile, key: replace(tile, splits=3))
    index = next(i for i, (_, x) in enumerate(CASES) if x.name.startswith(f"Q4_K-{n_rows}x512-"))
    test_kernel_agrees_with_reference(index)


@pytest.mark.every
@pytest.mark.parametrize("name", ON_CUDA)
def test_logits_of_a_prompt_and_of_decode_agree_with_the_published_model(name: str) -> None:
    ids, want = expected(name)
    runner = Runner(FIXTURES / f"{name}.gguf", loaded=loaded(name))
    parts = ids[:-2], ids[-2:-1], ids[-1:]
    got = np.concatenate([runner.feed((0, part))[0] for part in parts])
    assert np.linalg.norm(got - want) / np.linalg.norm(want) <= FIXTURE_TOLERANCE


@pytest.mark.every
@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "nomicbert",
        "eurobert",
        "modernbert",
        "gemmaembedding",
        "jinabert2",
        "jinabert3",
        "nomicbertmoe",
        "neobert",
    ],
)
def test_hidden_rows_of_encoders_agree_with_the_published_model(name: str) -> None:
    with np.load(ENCODERS / f"{name}.npz") as data:
        first, second, *_ = np.split(data["tokens"], np.cumsum(data["lengths"])[:-1])
        want = data["hidden"]
    for texts in ((first,), (second[:9], first[:20], second)):
        runner = Runner(
            ENCODERS / f"{name}.gguf", n_sequences=len(texts), loaded=loaded(name, ENCODERS)
        )
        got = runner.feed(*enumerate(texts))
        reference = Runner(ENCODERS / f"{name}.gguf", n_sequences=len(texts))
        for rows, ref in zip(got, reference.feed(*enumerate(texts)), strict=True):
            assert np.linalg.norm(rows - ref) / np.linalg.norm(ref) <= FIXTURE_TOLERANCE
        if len(texts) == 1:
            assert np.linalg.norm(got[0] - want) / np.linalg.norm(want) <= FIXTURE_TOLERANCE


@cache
def loaded(name: str, folder: Path = FIXTURES):
    """Return an emulated backend with the weights of a fixture, and the plan."""
    with GGUFFile.open(folder / f"{name}.gguf") as file:
        _, graph = load(file)
        backend = emulated.backend()
        plan = make_plan(graph, backend, max_tokens=MAX_TOKENS, max_outputs=MAX_TOKENS)
        for w in plan.weights:
            backend.upload(w, tensor_data(w, file.tensors[w.tensor]))
    return backend, plan
