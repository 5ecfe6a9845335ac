"""A preempted request continues from a copy or runs again, whichever is cheaper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from effort import on_backends
from fake import KINDS, alone
from present import computing
from test_engine import check_idle, engine, finish, greedy, prompt

from zinc import LLM, SamplingParams
from zinc.engine.load import memory
from zinc.engine.preemption import Rates
from zinc.engine.request import Request

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


@pytest.fixture
def copying(monkeypatch):
    """Make copies pay, whatever this machine measures."""
    monkeypatch.setattr(Rates, "swap_pays", lambda rates, n_tokens, n_bytes: n_tokens > 0)


def six(e):
    """Run more sequences than fit in memory; return them when they have ended."""
    sequences = [e.submit(Request(prompt(20, i), greedy(100), ())) for i in range(6)]
    finish(e, *sequences)
    return sequences


@pytest.mark.alike(4)
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copied_sequence_is_not_run_again(kind, prefix_cache, copying):
    e = engine(kind, n_blocks=24, context=150, swap_bytes=1 << 30, prefix_cache=prefix_cache)
    sequences = six(e)
    for i, s in enumerate(sequences):
        assert s.ids == alone(kind, prompt(20, i), 100)
    # Windows are so small that the prefix cache keeps all of them.
    assert e.pool.stats.swapped_in > 0 or (kind == "only sliding" and prefix_cache)
    # By chance, two prompts may begin with the same tokens.
    assert e.program.n_run <= sum(len(s.ids) - 1 for s in sequences)
    assert prefix_cache or e.program.n_run == sum(len(s.ids) - 1 for s in sequences)
    check_idle(e)


@pytest.mark.parametrize(
    ("kind", "swap_bytes"),
    [("full", 4000), ("sliding", 7000), ("recurrent", 4000), ("everything", 7000)],
)
def test_a_sequence_without_room_for_a_copy_is_run_again(kind, swap_bytes, copying):
    e = engine(kind, n_blocks=24, context=150, swap_bytes=swap_bytes)
    sequences = six(e)
    for i, s in enumerate(sequences):
        assert s.ids == alone(kind, prompt(20, i), 100)
    assert 0 < e.pool.stats.swapped_out < sum(s.n_preempted for s in sequences)
    check_idle(e)


def test_a_copy_is_dropped_with_its_request(copying):
    e = engine(n_blocks=24, context=150, swap_bytes=1 << 30)
    sequences = [e.submit(Request(prompt(20, i), greedy(100), ())) for i in range(6)]
    while not any(s.cache.swapped for s in sequences):
        e.step()
    gone = next(s for s in sequences if s.cache.swapped)
    e.cancel(gone)
    assert gone.cache.swapped is None
    finish(e, *sequences)
    check_idle(e)


def test_the_cheaper_of_copying_and_running_again_is_chosen():
    rates = Rates()
    assert not rates.swap_pays(1000, 0)  # no step has been measured yet
    rates.ran(100, 0.1)
    rates.byte_s = 1e-9
    assert rates.swap_pays(1000, 400_000_000)  # 0.8 s against 1 s
    assert not rates.swap_pays(1000, 600_000_000)
    assert not rates.swap_pays(0, 1)
    for _ in range(40):
        rates.ran(100, 0.05)
    assert not rates.swap_pays(1000, 400_000_000)
    for _ in range(40):
        rates.copied(1_000_000, 0.0001)
    assert rates.swap_pays(1000, 400_000_000)
    rates.copied(0, 1.0)
    assert rates.swap_pays(1000, 400_000_000)


# A hybrid has blocks and states to copy; windows are blocks too.
@pytest.mark.parametrize(
    ("family", "backend"),
    on_backends(("gemma3", "qwen35"), ("ref", *computing()), everywhere=["qwen35"]),
)
def test_a_model_continues_from_its_copy(family, backend, monkeypatch, copying):
    monkeypatch.setattr(memory, "choose_pool", lambda *args: 256)
    short = SamplingParams(temperature=0, max_tokens=70, ignore_eos=True)
    path, options = FIXTURES / f"{family}.gguf", {"backend": backend, "context": 256}
    with LLM(path, **options, swap_bytes=1 << 30) as llm:
        rng = np.random.default_rng(0)
        prompts = [rng.integers(3, llm.spec.vocab, 64 - i).tolist() for i in range(2)]
        answers = llm.generate(prompts, short)
        assert llm.engine.pool.stats.swapped_in > 0
        llm.engine.pool.check()
    with LLM(path, **options, prefix_cache=False) as llm:
        for ids, answer in zip(prompts, answers, strict=True):
            assert llm.generate(ids, short).token_ids == answer.token_ids
