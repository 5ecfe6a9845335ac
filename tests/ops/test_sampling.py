"""Tokens that a device draws: those of the host's chain for the same seed and index, and as often
as they should."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_emulator import emulated
from ops.running import run
from present import computing

from zinc.backends import api
from zinc.engine.sampling import Sampler, SamplingParams
from zinc.engine.sampling.candidates import Candidates
from zinc.engine.sampling.common_chain import CommonChain, sample_common
from zinc.ops.cases import Case
from zinc.ops.noise import Draw
from zinc.ops.sampling import pack_sample_params
from zinc.ops.step import SampleParams

DRAWING = ["ref", *(name for name in computing() if api.kernels(name).supports("sample"))]
ROWS = [(name, n_vocab) for name in DRAWING for n_vocab in (300, 9000)]
if emulated.COMPILER is not None:
    ROWS.append(("emulated", 300))
CHI_SQUARE_999_7 = 24.32  # 0.999 quantile, 7 degrees of freedom


def drawn(name, logits, draws):
    """(tokens, largest logits) of rows."""
    case = Case("draw", len(logits), sample_params=pack_sample_params(draws))
    rows = case.graph.select_rows(case.graph.embed(case.given(logits)))
    backend = emulated.backend() if name == "emulated" else api.create(name)
    tokens, peaks = run(backend, case.returns(case.graph.sample(rows))).T
    return tokens.astype(int).tolist(), peaks


@pytest.mark.parametrize(("name", "n_vocab"), ROWS)
def test_the_host_draws_the_same_token_for_the_same_seed_and_index(name, n_vocab):
    rng = np.random.default_rng(n_vocab)
    chains = [
        CommonChain(int(k), float(p), float(least), float(t), int(keep))
        for k, p, least, t, keep in zip(
            rng.choice([2, 7, 40, 64], 200),
            rng.choice([1.0, 0.95, 0.5], 200),
            rng.choice([0.0, 0.05, 0.5], 200),
            rng.choice([0.5, 1.0, 1.8], 200),
            rng.choice([0, 5], 200),
            strict=True,
        )
    ]
    logits = (2 * rng.standard_normal((200, n_vocab))).astype(np.float32)
    logits[::7] = np.round(logits[::7])  # with ties
    logits[3::9, : n_vocab - 5] = -np.inf  # fewer tokens than k
    # Sums that are equal in float32 might give other tokens; there are none here.
    seeds = rng.integers(2**64, size=200, dtype=np.uint64).tolist()
    draws = [Draw(seed, i) for i, seed in enumerate(seeds)]
    banned: list[tuple[int, ...]] = [() for _ in logits]
    for i in range(0, 200, 3):  # among the most likely tokens
        banned[i] = tuple(rng.choice(logits[i].argsort()[-12:], i % 8, replace=False).tolist())
    params = [
        SampleParams(c.k, c.min_keep, c.top_p, c.min_p, c.temperature, *reversed(draw), ban)
        for c, draw, ban in zip(chains, draws, banned, strict=True)
    ]
    allowed = logits.copy()
    for row, ban in zip(allowed, banned, strict=True):
        row[list(ban)] = -np.inf
    wanted = sample_common(chains, [Candidates(row) for row in allowed], draws)
    assert drawn(name, logits, params)[0] == wanted


@pytest.mark.parametrize("name", DRAWING)
def test_tokens_come_as_often_as_they_should(name):
    logits = np.full(400, -np.inf, np.float32)
    likely = np.array([3, 50, 77, 120, 200, 301, 302, 399])
    logits[likely] = np.random.default_rng(3).normal(0, 1, 8)
    n = 4000
    draws = [SampleParams(64, temperature=1.5, token_index=i, seed=11) for i in range(n)]
    tokens, _ = drawn(name, np.tile(logits, (n, 1)), draws)
    counts = np.array([tokens.count(token) for token in likely])
    assert counts.sum() == n
    means = np.exp(logits[likely].astype(np.float64) / 1.5)
    means *= n / means.sum()
    assert ((counts - means) ** 2 / means).sum() < CHI_SQUARE_999_7


@pytest.mark.parametrize("name", DRAWING)
def test_the_likeliest_is_the_first_of_equals_and_a_row_may_be_left_out(name):
    rng = np.random.default_rng(5)
    logits = rng.integers(-3, 9, (20, 5000)).astype(np.float32)
    draws = [SampleParams(int(i != 13)) for i in range(20)]
    tokens, peaks = drawn(name, logits, draws)
    keep = np.arange(20) != 13
    assert np.array(tokens)[keep].tolist() == logits.argmax(axis=1)[keep].tolist()
    assert np.array_equal(peaks[keep], logits.max(axis=1)[keep])


@pytest.mark.parametrize("k", [1, 40])
def test_a_row_whose_tokens_are_all_banned_shows_in_its_largest_logit(k):
    logits = np.full((2, 3000), -np.inf, np.float32)
    logits[:, [5, 2999]] = 1.0
    for name in DRAWING:
        draws = [SampleParams(k, banned=(5, 2999)), SampleParams(k, banned=(5,))]
        tokens, peaks = drawn(name, logits, draws)
        assert peaks.tolist() == [-np.inf, 1.0]
        assert tokens[1] == 2999
        assert 0 <= tokens[0] < 3000


@pytest.mark.parametrize("k", [1, 40])
def test_a_damaged_row_shows_in_its_largest_logit(k):
    """And its token is one of the vocabulary: the next step, already on its way, looks it up."""
    logits = np.zeros((4, 3000), np.float32)
    logits[0, 2000], logits[1, 5], logits[2] = np.nan, np.inf, -np.inf
    for name in DRAWING:
        tokens, peaks = drawn(name, logits, [SampleParams(k, top_p=0.9)] * 4)
        assert np.isnan(peaks[0])
        assert peaks[1:].tolist() == [np.inf, -np.inf, 0.0]
        assert tokens[:3] == [2000, 5, 0]


@pytest.mark.parametrize(
    ("settings", "draws"),
    [
        ({"temperature": 0}, True),
        ({}, True),
        ({"top_k": 64, "top_p": 1.0, "min_p": 0.0}, True),
        ({"top_k": 65}, False),
        ({"top_k": 0}, False),
        ({"logprobs": 0}, False),
        ({"temperature": 0, "logit_bias": {5: 1.0}}, False),
        ({"repeat_penalty": 1.1}, False),
        ({"temperature": 0, "presence_penalty": 0.5}, False),
        ({"ignore_eos": True}, True),
        ({"logit_bias": {5: -np.inf, 6: -np.inf}}, True),
        ({"logit_bias": {5: -np.inf, 6: -100.0}}, False),
        ({"logit_bias": dict.fromkeys(range(20), -np.inf)}, False),
        ({"mirostat": 2}, False),
        ({"xtc_probability": 0.5}, False),
        ({"samplers": ("temperature", "top_k")}, False),
    ],
)
def test_which_requests_a_device_draws_for(settings, draws):
    sampler = Sampler(SamplingParams(seed=1, **settings), 50, end_tokens=[7])
    assert (sampler.device_params() is not None) is draws
