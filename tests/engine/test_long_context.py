"""Sequences that outgrow the original context while others stay within it, on real models.

The oracle is the model's own logits over whole prompts, which tests/models/test_context.py compares
with transformers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from effort import on_backends
from present import computing

from zinc import LLM, RopeScaling, SamplingParams
from zinc.engine.request import Request
from zinc.engine.sequence import Sequence

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
GREEDY = SamplingParams(temperature=0, max_tokens=16)


def opened(name: str, backend: str = "ref", **options) -> LLM:
    rope = RopeScaling("yarn", 4.0, 64) if name == "qwen35" else None
    path = FIXTURES / f"{name}.gguf"
    return LLM(path, backend=backend, rope=rope, context=256, batch_tokens=64, **options)


def prompt(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 128, n).tolist()


def finish(llm: LLM, *sequences: Sequence) -> list[list[int]]:
    while any(s.finish_reason is None for s in sequences):
        llm.engine.step()
    assert [s.error for s in sequences] == [None] * len(sequences)
    return [s.generated for s in sequences]


def check(llm: LLM, ids: list[int], generated: list[int], slack: float) -> None:
    """Check that each token is the most likely one after the text before it, up to near-ties."""
    text, n = [*ids, *generated], llm.engine.plain_context
    logits = np.concatenate([llm.logits(text[:n]), llm.logits(text)[n:]])  # plain, and extended
    for i, row in enumerate(logits[len(ids) - 1 : -1]):
        assert row[generated[i]] >= row.max() - slack * np.abs(row).max(), f"token {i}"


@pytest.mark.parametrize(
    ("name", "backend"),
    on_backends(
        ["qwen3yarn", "phi3long", "qwen35"],
        ["ref", *computing()],
        everywhere=["qwen3yarn", "qwen35"],
        always=("ref", "cpu"),
    ),
)
def test_a_sequence_is_run_again_when_it_outgrows_the_plain_context(name, backend):
    with opened(name, backend) as llm:
        assert llm.engine.plain_context == 64
        sequence = llm.engine.submit(Request(prompt(56), GREEDY))
        assert not sequence.extended
        (generated,) = finish(llm, sequence)
        assert sequence.extended
        assert sequence.n_preempted == 0
        check(llm, prompt(56), generated, 0.0 if backend == "ref" else 5e-3)
        llm.engine.pool.check()


@pytest.mark.parametrize("name", ["qwen3yarn", "qwen35"])
def test_short_and_long_sequences_share_steps(name):
    lengths = (10, 80, 50, 100, 63)
    with opened(name, prefix_cache=False) as llm:
        submit = llm.engine.submit
        alone = [
            finish(llm, submit(Request(prompt(n, i), GREEDY)))[0] for i, n in enumerate(lengths)
        ]
    with opened(name) as llm:
        sequences = [
            llm.engine.submit(Request(prompt(n, i), GREEDY)) for i, n in enumerate(lengths)
        ]
        assert finish(llm, *sequences) == alone
        assert [s.extended for s in sequences] == [False, True, True, True, True]
        llm.engine.pool.check()


@pytest.mark.parametrize("name", ["qwen3yarn", "qwen35"])
def test_prefixes_are_shared_among_sequences_of_the_same_kind(name):
    with opened(name) as cached, opened(name, prefix_cache=False) as plain:

        def answer(ids: list[int], n_cached: int) -> list[int]:
            sequence = cached.engine.submit(Request(ids, GREEDY))
            (got,) = finish(cached, sequence)
            assert got == finish(plain, plain.engine.submit(Request(ids, GREEDY)))[0]
            assert sequence.n_cached == n_cached
            return [*ids, *got, 5, 6, 7]

        answer(answer(prompt(90), 0), 90 + 15)
        # A short prompt with the same beginning cannot use the keys of the long one.
        answer(answer(prompt(36), 0), 36 + 15)


def test_a_context_below_the_original_has_one_program():
    with LLM(FIXTURES / "qwen3yarn.gguf", backend="ref", context=64) as llm:
        assert llm.engine.plain_context == llm.context == 64
    with LLM(FIXTURES / "qwen3yarn.gguf", backend="ref") as llm:
        assert llm.context == 256
        assert llm.engine.plain_context == 64
        assert llm.memory.arena_bytes == 2 * llm.plan.arena_bytes
