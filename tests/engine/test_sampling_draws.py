"""Draws of tokens: their frequencies for each sampler chain, and what they depend on."""

from __future__ import annotations

import math

import effort
import numpy as np
import pytest

from zinc.engine.sampling import Sampler, SamplingParams
from zinc.engine.sampling.candidates import Candidates
from zinc.engine.sampling.draw import draw_position
from zinc.ops.noise import Draw, gumbel, gumbel_rows

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
PENALTIES = {"repeat_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.1}
CHAINS = {
    "default": {},
    "none": OFF,
    "temperature": OFF | {"temperature": 1.7},
    "top_k": OFF | {"top_k": 5},
    "top_p": OFF | {"top_p": 0.8},
    "min_p": OFF | {"min_p": 0.1},
    "typical": OFF | {"typical_p": 0.7},
    "top_n_sigma": OFF | {"top_n_sigma": 1.2},
    "penalties": PENALTIES,
    "xtc": OFF | {"xtc_probability": 0.4, "xtc_threshold": 0.15},
    "mirostat": OFF | {"mirostat": 2, "mirostat_tau": 1.6},
}
LOGITS = np.array([2.1, -0.4, 1.3, 0.2, 1.7, -1.0, 0.9, -2.5, 0.5, 1.1, -0.1, 0.0], np.float32)
HISTORY = [4, 4, 0, 9]
N = 100_000


def quantile_999(freedom):
    """0.999 quantile of the chi-square distribution (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.0902 * math.sqrt(2 / (9 * freedom))) ** 3


def check(tokens, shares):
    counts = np.bincount(tokens, minlength=shares.size)
    assert counts.sum() == counts[shares > 0].sum()
    means = shares[shares > 0] * counts.sum()
    assert means.min() > 5
    if means.size > 1:
        statistic = ((counts[shares > 0] - means) ** 2 / means).sum()
        assert statistic < quantile_999(means.size - 1)


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def nucleus(order, shares, p):
    """The first ids of `order` whose probabilities reach p."""
    n = int(np.searchsorted(np.cumsum(shares[order]), p)) + 1
    return np.isin(np.arange(shares.size), order[:n])


def exact(p):
    """The distribution that the samplers of `p` define, computed over the whole vocabulary."""
    x = LOGITS.astype(np.float64)
    for token in set(HISTORY):
        x[token] = x[token] * p.repeat_penalty if x[token] <= 0 else x[token] / p.repeat_penalty
        x[token] -= HISTORY.count(token) * p.frequency_penalty + p.presence_penalty
    if p.mirostat:
        surprise = -np.log2(softmax(x))
        return softmax(np.where(surprise <= 2 * p.mirostat_tau, x, -np.inf) / p.temperature)
    if p.top_n_sigma > 0:
        x[x < x.max() - p.top_n_sigma * x.std()] = -np.inf
    if p.top_k:
        x[np.argsort(-x)[p.top_k :]] = -np.inf
    if p.typical_p < 1:
        shares = softmax(x)
        surprise = -np.log(shares)
        entropy = (shares * surprise).sum()
        x[~nucleus(np.argsort(abs(surprise - entropy)), shares, p.typical_p)] = -np.inf
    if p.top_p < 1:
        x[~nucleus(np.argsort(-x), softmax(x), p.top_p)] = -np.inf
    x[softmax(x) < p.min_p * softmax(x).max()] = -np.inf
    plain, likely = softmax(x / p.temperature), np.flatnonzero(softmax(x) >= p.xtc_threshold)
    x[likely[np.argsort(-x[likely])][:-1]] = -np.inf
    return (1 - p.xtc_probability) * plain + p.xtc_probability * softmax(x / p.temperature)


def sampler_of(chain, seed):
    sampler = Sampler(SamplingParams(seed=seed, **CHAINS[chain]), LOGITS.size)
    sampler.accept_prompt(HISTORY)
    return sampler


def at(sampler, index):
    """The token that `sampler` draws at `index` of an answer whose tokens change nothing else."""
    sampler._index = index
    return sampler.sample(LOGITS).token


@pytest.mark.alike(3)
@pytest.mark.parametrize("chain", CHAINS)
def test_tokens_come_as_often_as_the_chain_says(chain):
    sampler = sampler_of(chain, 17)
    n = effort.examples(N) if effort.EVERY else 2000
    check([at(sampler, i) for i in range(n)], exact(sampler.params))


@pytest.mark.alike(3)
@pytest.mark.parametrize("chain", [name for name in CHAINS if name not in ("xtc", "mirostat")])
def test_tokens_of_many_draws_come_as_often_as_the_chain_says(chain):
    """The candidates are those of the chain; their noise is added for all draws at once."""
    sampler = sampler_of(chain, 2**63 + 5)
    left = sampler._begin(LOGITS, None)
    for process in sampler._processors:
        left = process(left)
    ids = np.arange(len(left)) if left.ids is None else left.ids
    rows, repeated, found = np.repeat(np.arange(500), ids.size), np.tile(ids, 500), []
    for start in range(0, N, 500):
        draws = [Draw(sampler.seed, start + i) for i in range(500)]
        sums = left.logits + gumbel_rows(draws, rows, repeated).reshape(500, -1)
        found.append(ids[sums.argmax(axis=1)])
    tokens = np.concatenate(found)
    assert tokens[:200].tolist() == [at(sampler, i) for i in range(200)]
    check(tokens, exact(sampler.params))


@pytest.mark.parametrize("chain", CHAINS)
def test_a_draw_depends_on_no_other_draw(chain):
    forward, backward = sampler_of(chain, 3), sampler_of(chain, 3)
    tokens = [at(forward, i) for i in range(40)]
    assert [at(backward, i) for i in reversed(range(40))] == tokens[::-1]
    assert [forward.sample(LOGITS).token for _ in range(3)] == [tokens[-1]] * 3
    assert len(set(tokens)) > 2


def test_mirostat_follows_the_tokens_that_are_accepted():
    """Neither samples that are repeated nor tokens that were not sampled change its state."""
    once, twice = sampler_of("mirostat", 3), sampler_of("mirostat", 3)
    mu = once._mu
    for _ in range(10):
        token = once.sample(LOGITS).token
        assert [twice.sample(LOGITS).token for _ in range(2)] == [token] * 2
        for sampler in (once, twice):
            sampler.accept(token)
        assert once._mu == twice._mu != mu
        mu = once._mu
    once.accept(11)
    assert once._mu == mu


def test_device_params_name_the_draw_ahead():
    sampler = Sampler(SamplingParams(seed=-3), 50)
    sampler.accept_prompt([1, 2, 3])
    sampler.accept(7)
    params = sampler.device_params(), sampler.device_params(behind=True)
    assert [(p.seed, p.token_index) for p in params] == [(2**64 - 3, 1), (2**64 - 3, 2)]


@pytest.mark.parametrize("n", [2, 200, 5000, 151_936])
def test_among_many_candidates_the_largest_sum_is_found(n):
    """From the noise of all, for flat and for sharp distributions, whole and with gaps."""
    rng = np.random.default_rng(n)
    for trial, scale in enumerate([0, 0.1, 1, 2.5, 8, 1e6]):
        logits = rng.normal(0, scale, n).astype(np.float32)
        logits[rng.integers(0, n, 40)] += np.linspace(0, 3 * scale, 40, dtype=np.float32)
        logits[rng.random(n) < 0.1] = -np.inf
        logits[0] = 0
        draw = Draw(2**64 - 1 - trial, trial)
        position = (logits + gumbel(draw, np.arange(n))).argmax()
        assert draw_position(Candidates(logits), draw) == position
        kept = np.sort(rng.choice(n, -(-n // 2), replace=False))
        ranked = kept[np.argsort(-logits[kept], kind="stable")]
        for ids, ordered in ((kept, False), (ranked, True)):
            if np.isfinite(logits[ids]).any():
                found = draw_position(Candidates(logits[ids], ids, ordered), draw)
                assert found == (logits[ids] + gumbel(draw, ids)).argmax()


def test_tokens_of_a_flat_vocabulary_are_drawn_alike():
    n = 20_000
    flat = Candidates(np.zeros(n, np.float32))
    tokens = np.array([draw_position(flat, Draw(1, i)) for i in range(500)])
    check(tokens // 1000, np.full(20, 1 / 20))
    check(tokens % 1024 // 64, np.bincount(np.arange(n) % 1024 // 64) / n)
