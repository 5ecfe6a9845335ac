"""The embedded model: its perplexity and its probabilities on every backend.

A trained model shows errors that random models hide, above all in attention over long contexts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from present import computing

from zinc import LLM, SamplingParams

PROSE = Path(__file__).parents[1] / "data" / "oracle" / "prose.txt"  # no text of its training
WINDOW = 256
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=5)
# Largest and mean error of a log-probability that 8-bit activations and a 16-bit cache cause. The
# CPU has one scale for 256 activations, other backends have one for 32.
CHANGES = {"cpu": (0.3, 0.08)}
OTHERS = (0.15, 0.04)


def opened(backend: str, **options) -> LLM:
    return LLM(backend=backend, kv_dtype="f16", context=512, batch_tokens=96, **options)


@pytest.fixture(scope="module")
def ref() -> Iterator[LLM]:
    with opened("ref") as llm:
        yield llm


@pytest.fixture(scope="module")
def ids(ref: LLM) -> list[int]:
    return ref.tokenizer.encode(PROSE.read_text())


@pytest.mark.every
@pytest.mark.parametrize("backend", [name for name in computing() if name != "cpu"])
def test_perplexity_of_a_held_out_text_equals_ref(backend, ref, ids):
    """On the CPU, a long text is also compared with llama.cpp."""
    text = ids[:WINDOW]
    with opened(backend) as llm:
        wanted = pytest.approx(ref.perplexity(text, WINDOW), rel=5e-3)
        assert llm.perplexity(text, WINDOW) == wanted


@pytest.mark.parametrize(
    "backend",
    [pytest.param(x, marks=() if x == "cpu" else pytest.mark.every) for x in computing()],
)
def test_probabilities_equal_ref_after_a_prompt_and_after_a_cached_prefix(backend, ref, ids):
    """The second prompt continues the first and its answer.

    So its tokens come from decode, prefill and the prefix cache; without the cache it is prefilled
    in chunks from its start.
    """
    first = ids[:260]
    rows = []
    for prefix_cache in (True, False):
        with opened(backend, prefix_cache=prefix_cache) as llm:
            if prefix_cache:
                one = llm.generate(first, GREEDY)
                second = [*first, *one.token_ids, *ids[260:275]]
                rows.append((first, one))
            two = llm.generate(second, GREEDY)
            assert two.timings.cached_tokens == (len(first) + 5 if prefix_cache else 0)
            rows.append((second, two))
    errors = []
    text: list[int] = []
    for prompt, answer in reversed(rows):
        begins = [*prompt, *answer.token_ids]
        if text[: len(begins)] != begins:
            text, logits = begins, ref.logits(begins).astype(np.float64)
        own = logits[len(prompt) - 1 : len(begins) - 1]
        wanted = own - np.log(np.exp(own).sum(axis=1))[:, None]
        for row, sampled in zip(wanted, answer.logprobs, strict=True):
            errors += [abs(row[token] - p) for token, p in sampled.top_logprobs]
    assert len(errors) == len(rows) * 6 * 5
    most, mean = CHANGES.get(backend, OTHERS)
    assert max(errors) <= most
    assert np.mean(errors) <= mean
