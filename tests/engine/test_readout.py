"""Readouts of prompts, on the model that reveals every mistake of the cache."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fake import KINDS, VOCAB, FakeProgram, alone, model

from zinc.core.errors import RequestError, UnsupportedError
from zinc.engine.engine import Engine
from zinc.engine.readout import Pooled, Pooling, PromptLogprobs, embeddings
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams

NONE = SamplingParams(max_tokens=0)


def greedy(n):
    return SamplingParams(temperature=0, max_tokens=n)


def engine(kind="full", n_blocks=64, **options):
    program, cache = model(kind, n_blocks, **options)
    reading = FakeProgram(program.plan, cache)
    return Engine(
        program,
        cache,
        VOCAB,
        200,
        prompt_tokens_beside_streams=10,
        prepare=lambda kind, extended, adapted: reading,
    )


def nexts(kind, ids):
    """Return the most likely token after each token of a prompt."""
    return [alone(kind, ids[: i + 1], 1)[-1] for i in range(len(ids))]


def finish(engine, sequences):
    for _ in range(3000):
        if all(s.finish_reason for s in sequences):
            assert not any(s.error for s in sequences), [s.error for s in sequences]
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


@pytest.mark.alike(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_readouts_get_all_rows_in_any_batch(kind, seed):
    """Embeddings, scored prompts and streams share a cache too small for all of them."""
    chance = random.Random(seed)
    e = engine(kind, 24, window_blocks=24)
    wanted = []
    begun = [chance.randrange(VOCAB) for _ in range(20)]
    for i in range(12):
        ids = begun[: chance.randrange(20)] + [
            chance.randrange(VOCAB) for _ in range(chance.randrange(1, 60))
        ]
        if i % 3 == 0:
            pooling = chance.choice(list(Pooling))
            readout = Pooled(pooling)
            wanted.append((e.submit(Request(ids, NONE, readout=readout)), ids, readout, pooling))
        else:
            n = chance.randrange(6)
            readout = PromptLogprobs(1) if i % 3 == 1 else None
            wanted.append((e.submit(Request(ids, greedy(n), readout=readout)), ids, readout, None))
        for _ in range(chance.randrange(4)):
            e.step()
    finish(e, [s for s, *_ in wanted])
    for s, ids, readout, pooling in wanted:
        rows = nexts(kind, ids)
        assert s.ids == alone(kind, ids, s.max_tokens if pooling is None else 0)
        if pooling is not None:
            if pooling is Pooling.NONE:
                np.testing.assert_array_equal(readout.rows, np.eye(VOCAB)[rows])
                continue
            want = {
                Pooling.MEAN: np.bincount(rows, minlength=VOCAB) / len(rows),
                Pooling.CLS: np.eye(VOCAB)[rows[0]],
                Pooling.LAST: np.eye(VOCAB)[rows[-1]],
            }[pooling]
            np.testing.assert_allclose(readout.row, want)
        elif readout is not None:
            assert [t.token for t in readout.tokens] == ids[1:]
            assert [t.top_logprobs[0][0] for t in readout.tokens] == rows[:-1]
    assert e.idle
    assert [a.n_held for a in e.allocators] == [0] * len(e.allocators)
    e.pool.check()


def test_a_preempted_readout_starts_again():
    e = engine("full", 12)
    ids = list(range(50))
    readout = Pooled()
    s = e.submit(Request(ids, NONE, readout=readout))
    e.step()
    assert 0 < s.n_read < 50
    other = e.submit(Request(list(range(60)), greedy(3), priority=5))
    finish(e, [s, other])
    assert s.n_preempted
    np.testing.assert_allclose(readout.row.sum(), 1)
    np.testing.assert_allclose(
        readout.row, np.bincount(nexts("full", ids), minlength=VOCAB) / len(ids)
    )


def test_the_prefix_cache_keeps_scored_prompts_but_no_embedded_texts():
    e = engine()
    ids = list(range(40))
    finish(e, [e.submit(Request(ids, NONE, readout=Pooled()))])
    assert e.pool.cached_bytes == 0
    finish(e, [e.submit(Request(ids, NONE, readout=PromptLogprobs()))])
    s = e.submit(Request(ids, greedy(2)))
    finish(e, [s])
    assert s.n_cached > 0


def test_a_prompt_may_fill_the_context_when_nothing_follows():
    e = engine()
    finish(e, [e.submit(Request([1] * 200, NONE, readout=Pooled()))])
    with pytest.raises(RequestError, match="too long"):
        e.submit(Request([1] * 201, NONE, readout=Pooled()))
    with pytest.raises(RequestError, match="too long"):
        e.submit(Request([1] * 200, greedy(1), readout=PromptLogprobs()))


def test_a_failed_pass_fails_its_prompts_only():
    for broken in ("hidden", "logits"):
        e = engine()
        (
            e._runner._prepare("hidden", False, False) if broken == "hidden" else e.program
        ).fail_at = 90
        stream = e.submit(Request([1, 2, 3], greedy(1)))
        embedded = e.submit(Request([4, 90], NONE, readout=Pooled()))
        scored = e.submit(Request([6, 7, 90, 1], greedy(1), readout=PromptLogprobs()))
        finish(e, [stream, scored if broken == "hidden" else embedded])
        failed = embedded if broken == "hidden" else scored
        assert (failed.finish_reason, str(failed.error)) == ("error", "the device is lost")
        assert stream.ids == alone("full", [1, 2, 3], 1)
        assert [a.n_held for a in e.allocators] == [0]


def test_an_engine_without_hidden_states_says_so():
    program, cache = model("full", 8)
    with pytest.raises(UnsupportedError, match="hidden"):
        Engine(program, cache, VOCAB, 50).submit(Request([1], NONE, readout=Pooled()))


def pooled(*rows):
    pools = []
    for row in rows:
        pools.append(Pooled(Pooling.CLS))
        pools[-1].read([1], 0, np.array([row], np.float32))
    return pools


def test_embeddings_are_cut_and_then_normalised():
    row = np.array([3.0, -4.0, 12.0])
    pools = pooled(row, np.zeros(3))
    for options, wanted in (
        ({}, row / 13),
        ({"dimensions": 2}, [0.6, -0.8]),
        ({"norm": None}, row),
        ({"norm": 1}, row / 19),
        ({"norm": float("inf")}, row / 12),
    ):
        found = embeddings(pools, **options)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found[0], wanted, rtol=1e-6)
        assert not found[1].any()
    for wrong in (0, 4):
        with pytest.raises(RequestError, match="this model has 3"):
            embeddings(pools, wrong)


def test_an_embedding_does_not_depend_on_the_other_texts():
    rows = np.random.default_rng(0).standard_normal((9, 384))
    together = embeddings(pooled(*rows))
    for row, found in zip(rows, together, strict=True):
        np.testing.assert_array_equal(embeddings(pooled(row))[0], found)


def test_pooling_by_the_number_in_a_file():
    assert [Pooling.of_file(n) for n in (None, 0, 1, 2, 3, 9, "last")] == [
        *["mean"] * 3, "cls", "last", "mean", "mean",
    ]  # fmt: skip
    with pytest.raises(RequestError, match="there is no pooling 'max'"):
        Pooling.named("max")
