"""The embedded model, which is trained: its perplexity and its probabilities on every backend.

Random models hide errors that a trained one shows, in attention over long contexts above all.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from present import computing

from zinc import LLM, SamplingParams

PROSE = Path(__file__).parents[1] / "data" / "oracle" / "prose.txt"  # no text of its training
WINDOW = 256
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=5)
# What 8-bit rows (on the CPU a scale for 256 of them, elsewhere for 32) and a 16-bit cache change
# in a log-probability: at most, and on average.
CHANGES = {"cpu": (0.3, 0.08)}
OTHERS = (0.15, 0.04)


def opened(backend: str, **options) -> LLM:
    return LLM(backend=backend, kv_dtype="f16", context=512, batch_tokens=96, **options)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    with opened("ref") as llm:
        return llm.tokenizer.encode(PROSE.read_text())


@pytest.mark.parametrize("backend", [name for name in computing() if name != "cpu"])
def test_the_perplexity_of_a_held_out_text_is_that_of_ref(backend, ids):
    """The CPU's is held to llama.cpp's, over a text that is long enough for its coarser rows."""
    text = ids[:WINDOW]
    with opened("ref") as ref, opened(backend) as llm:
        assert llm.perplexity(text, WINDOW) == pytest.approx(ref.perplexity(text, WINDOW), rel=5e-3)


@pytest.mark.parametrize("backend", computing())
def test_probabilities_are_those_of_ref_behind_a_prompt_and_behind_a_cached_one(backend, ids):
    """The second prompt goes on from the first and its answer, so that it is decoded, prefilled and
    found in the cache; without the cache it comes in chunks from its start."""
    first = ids[:260]
    rows = []
    for prefix_cache in (True, False):
        with opened(backend, prefix_cache=prefix_cache) as llm:
            if prefix_cache:
                one = llm.generate(first, GREEDY)
                second = [*first, *one.token_ids, *ids[260:275]]
                rows.append((first, one))
            two = llm.generate(second, GREEDY)
            assert two.timings.cached_tokens == (265 if prefix_cache else 0)
            rows.append((second, two))
    errors = []
    with opened("ref") as ref:
        known: dict[tuple[int, ...], np.ndarray] = {}
        for prompt, answer in rows:
            text = tuple(prompt + answer.token_ids)
            if text not in known:
                known[text] = ref.logits(list(text))
            logits = known[text][len(prompt) - 1 : -1].astype(np.float64)
            wanted = logits - np.log(np.exp(logits).sum(axis=1))[:, None]
            for row, sampled in zip(wanted, answer.logprobs, strict=True):
                errors += [abs(row[token] - p) for token, p in sampled.top_logprobs]
    assert len(errors) == 3 * 6 * 5
    most, mean = CHANGES.get(backend, OTHERS)
    assert max(errors) <= most
    assert np.mean(errors) <= mean
