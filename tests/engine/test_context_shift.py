"""Answers that continue beyond the context: the kept tokens run like a prompt of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import EVERY, on_backends
from fake import END, KINDS, alone, shifted
from present import computing
from test_engine import check_idle, engine, finish, greedy, prompt

from zinc import LLM, SamplingParams
from zinc.core.errors import RequestError
from zinc.engine.request import Request

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


@pytest.mark.alike(8)
@pytest.mark.parametrize("n_kept", [0, 4, 30, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_continues_beyond_the_context(kind, n_kept):
    e = engine(kind, n_blocks=64, context=100)
    ids = prompt(45)
    params = replace(greedy(300), context_shift=n_kept)
    s = e.submit(Request(ids, params, ()))
    other = e.submit(Request(prompt(20, 3), greedy(60), ()))
    finish(e, s, other)
    want, n_shifted = shifted(kind, ids, 300, 100, 45 if n_kept == -1 else n_kept)
    assert s.generated == want
    assert s.finish_reason == "length"
    assert s.timings().shifted_tokens == n_shifted > 100
    assert s.timings().generated_tokens == 300
    assert other.ids == alone(kind, prompt(20, 3), 60)
    check_idle(e)


def test_a_shifted_answer_ends_with_an_end_token_or_a_cancel():
    e = engine(n_blocks=64, context=60)
    first = e.submit(Request(prompt(20), replace(greedy(5000), context_shift=4), {END}))
    while not first.finish_reason:
        e.step()
    want, n_shifted = shifted("full", prompt(20), 5000, 60, 4, {END})
    assert first.generated == want
    assert first.n_shifted == n_shifted
    second = e.submit(Request(prompt(20), replace(greedy(5000), context_shift=4), ()))
    while not second.n_shifted:
        e.step()
    e.cancel(second)
    check_idle(e)


def test_preempting_a_shifted_answer_changes_no_token():
    e = engine(n_blocks=24, context=100, swap_bytes=3000)
    sequences = [
        e.submit(Request(prompt(20, i), replace(greedy(150), context_shift=8))) for i in range(4)
    ]
    finish(e, *sequences)
    assert sum(s.n_preempted for s in sequences) > 0
    for i, s in enumerate(sequences):
        assert (s.generated, s.n_shifted) == shifted("full", prompt(20, i), 150, 100, 8)
    check_idle(e)


def test_without_a_shift_an_answer_ends_with_the_context():
    e = engine(context=60)
    s = e.submit(Request(prompt(20), greedy(500)))
    finish(e, s)
    assert (s.n_generated, s.n_shifted, s.finish_reason) == (40, 0, "length")


@pytest.mark.parametrize(
    ("shift", "max_tokens", "message"),
    [
        (4, None, "needs max_tokens"),
        (31, 500, "cannot keep 31 tokens"),
        (-1, 500, "cannot keep 40 tokens"),
    ],
)
def test_impossible_shifts_are_refused(shift, max_tokens, message):
    e = engine(context=60)
    with pytest.raises(RequestError, match=message):
        e.submit(Request(prompt(40), replace(greedy(max_tokens), context_shift=shift)))
    with pytest.raises(RequestError, match="context_shift is -2"):
        SamplingParams(context_shift=-2)


@pytest.mark.parametrize(
    ("family", "backend"),
    on_backends(("qwen3", "gemma3", "qwen35"), ("ref", *computing()), everywhere=[]),
)
def test_a_shifted_answer_equals_one_from_the_kept_tokens(family, backend):
    """Compared with prompts of the kept text, run without a cache; more than one shift."""
    is_fast = backend in ("ref", "cpu") or EVERY
    context, n_prompt, n_kept, n = (64, 40, 4, 80) if is_fast else (32, 20, 4, 40)
    options = {"backend": backend, "context": context}
    path = FIXTURES / f"{family}.gguf"
    long = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, context_shift=n_kept)
    with LLM(path, **options) as llm:
        ids = np.random.default_rng(0).integers(3, llm.spec.vocab, n_prompt).tolist()
        answer = llm.generate(ids, long)
        text = [chunk.token_ids for chunk in llm.stream(ids, long)]
    assert [token for tokens in text for token in tokens] == answer.token_ids
    assert answer.timings.shifted_tokens > context - n_kept
    want: list[int] = []
    with LLM(path, **options, prefix_cache=False) as llm:
        while len(want) < n:
            # The last token of a context is sampled, and belongs to the next stretch.
            part = SamplingParams(temperature=0, max_tokens=n - len(want), ignore_eos=True)
            want += (fresh := llm.generate(ids, part).token_ids)
            ids = [*ids, *fresh]
            if len(ids) == context:
                last = int(llm.logits(ids)[-1].argmax())
                want.append(last)
                ids = [*ids[:n_kept], *[*ids, last][-((context - n_kept) // 2) :]]
    assert answer.token_ids == want[:n]
