"""The sampler chain: its samples and their frequencies, logprobs, and refusals."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from zinc.core.errors import ModelError, RequestError
from zinc.engine.sampling import DEFAULT_SAMPLERS, Sampler, SamplingParams, sample_rows, truncation
from zinc.engine.sampling.allowed import Words, limited
from zinc.engine.sampling.candidates import Candidates
from zinc.engine.sampling.common_chain import ORDER, CommonChain, sample_common
from zinc.engine.sampling.draw import draw_position
from zinc.ops.noise import Draw

RAW = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Settings under which tokens are drawn from the model's own distribution."""

# 0.999 quantiles of the chi-square distribution, by degrees of freedom.
CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 7: 24.32, 9: 27.88, 49: 85.35}


class Mask:
    """An `Allowed` that permits the tokens of an array of booleans, [n_vocab]."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        self._allowed = allowed
        packed = np.packbits(allowed, bitorder="little")
        n_words = -(-allowed.size // 32)
        self._words = np.pad(packed, (0, 4 * n_words - packed.size)).view(np.uint32)

    def forced(self) -> Sequence[int]:
        return ()

    def allows(self, token: int) -> bool:
        return bool(self._allowed[token])

    def mask(self) -> Words:
        return self._words


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def draws(params, logits, n, **arguments):
    sampler = Sampler(params, logits.size)
    counts = np.zeros(logits.size, np.int64)
    for _ in range(n):
        token = sampler.sample(logits, **arguments).token
        sampler.accept(token)
        counts[token] += 1
    return counts


def check_frequencies(counts, expected):
    """Compare frequencies by a chi-square test at 0.1%. Seeds are fixed, so it cannot flake."""
    possible = expected > 0
    assert counts[~possible].sum() == 0
    means = expected[possible] * counts.sum()
    assert means.min() > 5
    statistic = ((counts[possible] - means) ** 2 / means).sum()
    assert statistic < CHI_SQUARE_999[possible.sum() - 1]


# -- samples


def test_samples_follow_the_distribution_of_the_model():
    logits = np.random.default_rng(3).normal(0, 1, 8).astype(np.float32)
    check_frequencies(draws(SamplingParams(seed=1, **RAW), logits, 5000), softmax(logits))


def test_samples_follow_the_distribution_over_a_large_vocabulary():
    logits = np.full(20_000, -math.inf, np.float32)
    logits[np.linspace(0, 19_999, 50).astype(int)] = np.random.default_rng(5).uniform(0, 1, 50)
    check_frequencies(draws(SamplingParams(seed=2, **RAW), logits, 3000), softmax(logits))


@pytest.mark.parametrize("t", [0.5, 2.0])
def test_temperature_reshapes_the_distribution(t):
    logits = np.array([0.0, 0.5, 1.0, 1.5], np.float32)
    params = SamplingParams(seed=4, **RAW | {"temperature": t})
    check_frequencies(draws(params, logits, 4000), softmax(logits / t))


def test_the_default_chain_samples_from_the_renormalised_rest():
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.03, 0.02], np.float32))
    params = SamplingParams(seed=6, top_k=5, top_p=0.9, min_p=0.3, temperature=1.0)
    # top-k 5 leaves 0.98, top-p 0.9 of it four tokens, min-p 0.3 · 0.4 = 0.12 three.
    expected = np.array([0.4, 0.3, 0.15, 0, 0, 0]) / 0.85
    check_frequencies(draws(params, logits, 4000), expected)


def test_samplers_run_in_the_requested_order():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    settings_ = {"seed": 7, "temperature": 4.0, "top_k": 0, "min_p": 0.0, "top_p": 0.5}
    last = SamplingParams(samplers=("top_p", "temperature"), **settings_)
    first = SamplingParams(samplers=("temperature", "top_p"), **settings_)
    assert np.count_nonzero(draws(last, logits, 200)) == 1
    assert np.count_nonzero(draws(first, logits, 200)) == 2


def test_a_sampler_left_out_does_nothing():
    logits = np.zeros(10, np.float32)
    params = SamplingParams(seed=8, top_k=1, samplers=("temperature",))
    check_frequencies(draws(params, logits, 2000), np.full(10, 0.1))


def test_xtc_acts_with_its_probability():
    logits = np.log(np.array([0.6, 0.4], np.float32))
    params = SamplingParams(seed=9, **RAW, xtc_probability=0.25, xtc_threshold=0.3)
    # In a quarter of the samples only the second token is left.
    check_frequencies(draws(params, logits, 4000), np.array([0.75 * 0.6, 0.75 * 0.4 + 0.25]))


def test_mirostat_holds_the_surprise_at_its_target():
    """Over a flat tail, plain sampling would see about 12 bits; the target is 4."""
    logits = np.random.default_rng(1).normal(0, 1, 8192).astype(np.float32)
    sampler = Sampler(SamplingParams(seed=3, mirostat=2, mirostat_tau=4.0, temperature=1.0), 8192)
    ranks = np.argsort(np.argsort(-logits))
    drawn = []
    for _ in range(600):
        sampler.accept(token := sampler.sample(logits).token)
        drawn.append(ranks[token])
    # 4 bits of surprise after truncation correspond to about 2**4 candidates.
    assert 8 <= max(drawn[200:]) <= 40


# -- greedy


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=50))
def test_greedy_takes_the_lowest_of_the_most_likely(values):
    logits = np.array(values, np.float32)
    sampler = Sampler(SamplingParams(temperature=0), logits.size)
    assert sampler.sample(logits).token == values.index(max(values))


def test_greedy_ignores_truncation_but_not_penalties_and_bias():
    logits = np.array([1.0, 3.0, 2.9, 2.8], np.float32)
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.01}
    assert Sampler(SamplingParams(temperature=0, **xtc), 4).sample(logits).token == 1
    penalised = Sampler(SamplingParams(temperature=0, presence_penalty=1.0), 4)
    penalised.accept_prompt([1])
    assert penalised.sample(logits).token == 2
    penalised.accept(2)
    assert penalised.sample(logits).token == 3
    biased = SamplingParams(temperature=0, logit_bias={0: 2.5, 1: -math.inf})
    assert Sampler(biased, 4).sample(logits).token == 0


# -- seeds and state


def test_a_seed_repeats_its_tokens_and_so_does_reset():
    logits = np.random.default_rng(0).normal(0, 1, 300).astype(np.float32)
    settings_ = {"presence_penalty": 0.3, "dry_multiplier": 0.5, "xtc_probability": 0.5}

    def run(sampler):
        sampler.accept_prompt([1, 2, 3])
        tokens = []
        for _ in range(40):
            tokens.append(sampler.sample(logits).token)
            sampler.accept(tokens[-1])
        return tokens

    sampler = Sampler(SamplingParams(seed=5, **settings_), 300)
    first = run(sampler)
    sampler.reset()
    assert run(sampler) == first
    assert run(Sampler(SamplingParams(seed=5, **settings_), 300)) == first
    assert run(Sampler(SamplingParams(seed=6, **settings_), 300)) != first
    assert run(Sampler(SamplingParams(seed=-5, **settings_), 300)) != first


def test_a_random_seed_is_reported():
    logits = np.zeros(1000, np.float32)
    unseeded = Sampler(SamplingParams(**RAW), 1000)
    again = Sampler(SamplingParams(seed=unseeded.seed, **RAW), 1000)
    other = Sampler(SamplingParams(**RAW), 1000)
    assert other.seed != unseeded.seed
    tokens = []
    for _ in range(20):
        tokens.append(unseeded.sample(logits).token)
        assert again.sample(logits).token == tokens[-1]
        for sampler in (unseeded, again):
            sampler.accept(tokens[-1])
    assert len(set(tokens)) > 10


def test_the_logits_are_never_written_to():
    logits = np.random.default_rng(0).normal(0, 1, 5000).astype(np.float32)
    logits.setflags(write=False)
    params = SamplingParams(
        seed=1, repeat_penalty=1.2, dry_multiplier=1.0, logit_bias={3: 2.0}, logprobs=3
    )
    sampler = Sampler(params, 5000)
    sampler.accept_prompt([1, 2, 1, 2, 1])
    sampler.sample(logits, Mask(np.ones(5000, np.bool_)))


# -- masks, bias, logprobs


@given(st.integers(1, 3000), st.sampled_from([0.002, 0.05, 0.5, 0.98]), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(120), deadline=None)
def test_a_mask_leaves_the_allowed_tokens_of_a_row(n, share, seed):
    random = np.random.default_rng(seed)
    allowed = random.random(n) < share
    logits = random.normal(0, 1, n).astype(np.float32)
    row = logits.copy()
    left = limited(row, Mask(allowed).mask())
    found = np.full(n, -np.inf, np.float32)
    found[slice(None) if left.ids is None else left.ids] = left.logits
    np.testing.assert_array_equal(found, np.where(allowed, logits, -np.inf))
    assert left.ids is None or (np.diff(left.ids) > 0).all()
    np.testing.assert_array_equal(row, logits)
    assert not np.shares_memory(left.logits, row)


@pytest.mark.parametrize("mask", [np.ones(9, bool), np.ones(1, np.int64), np.ones(2, np.uint32)])
def test_a_mask_of_another_shape_is_a_mistake(mask):
    with pytest.raises(ValueError, match="does not fit 10 tokens"):
        limited(np.zeros(10, np.float32), mask)


class Asked(Mask):
    """A mask that counts how often it was computed."""

    n_masks = 0

    def mask(self):
        self.n_masks += 1
        return super().mask()


@pytest.mark.parametrize("seed", range(40))
def test_a_masked_sample_equals_that_of_a_row_of_allowed_tokens(seed):
    rng = random.Random(seed)
    n = rng.choice([30, 400, 3000])
    draw = np.random.default_rng(seed)
    settings = [mixed(rng) | {"seed": i, "logprobs": None} for i in range(8)]
    samplers = [Sampler(SamplingParams(**s), n, end_tokens=[5]) for s in settings]
    for _ in range(5):
        logits = draw.normal(0, 3, n).astype(np.float32)
        allowed = draw.random(n) < rng.choice([0.02, 0.5, 0.95])
        allowed[[5, 11]] = True
        masked = np.where(allowed, logits, np.float32(-np.inf))
        for sampler in samplers:
            expected = sampler.sample(masked).token
            assert sampler.sample(logits, Mask(allowed)).token == expected
            sampler.accept(expected)


def test_the_most_likely_token_is_checked_before_the_mask():
    logits = np.array([0, 3, 2, 1], np.float32)
    penalised = Sampler(SamplingParams(temperature=0, presence_penalty=2.5), 4)
    penalised.accept_prompt([1])
    for sampler, best in ((Sampler(SamplingParams(temperature=0), 4), 1), (penalised, 2)):
        free, held = Asked(np.ones(4, bool)), Asked(np.arange(4) != best)
        assert sampler.sample(logits, free).token == best
        assert free.n_masks == 0
        assert sampler.sample(logits, held).token == {1: 2, 2: 3}[best]
        assert held.n_masks == 1
    damaged = np.array([np.inf, 3, 2, 1], np.float32)  # no token is allowed
    sampler = Sampler(SamplingParams(temperature=0), 4)
    assert sampler.sample(damaged, Asked(np.arange(4) > 1)).token == 2


def test_no_mask_is_computed_if_the_sample_is_allowed_in_any_case():
    """The token equals the sample of a row that contains the allowed tokens only."""
    random, n, n_masks = np.random.default_rng(0), 3000, 0
    settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 3}
    short, masked = (Sampler(SamplingParams(**settings), n) for _ in range(2))
    for _ in range(300):
        logits = random.normal(0, 2, n).astype(np.float32)
        logits[random.integers(0, n, 3)] += np.float32([8, 7, 6])
        limits = Asked(random.random(n) < 0.6)
        expected = masked.sample(np.where(limits._allowed, logits, np.float32(-np.inf)))
        assert short.sample(logits, limits) == expected
        n_masks += limits.n_masks
        for sampler in (short, masked):
            sampler.accept(expected.token)
    assert 100 < n_masks < 250


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 1}, {"seed": 1, **RAW}])
def test_forced_tokens_are_not_sampled(settings):
    class Forced(Mask):
        def forced(self):
            return (2, 0)

    logits = np.array([0, 3, 2, 1], np.float32)
    forced, plain = (Sampler(SamplingParams(logprobs=1, **settings), 4) for _ in range(2))
    (sampled,) = sample_rows([forced], logits[None], [Forced(np.zeros(4, bool))])
    assert sampled == forced.sample(logits, Forced(np.zeros(4, bool)))
    assert (sampled.token, sampled.top_logprobs[0][0]) == (2, 1)
    assert sampled.logprob == pytest.approx(float(np.log(softmax(logits)[2])))
    assert forced.sample(logits).token == plain.sample(logits).token


def test_ignore_eos_bans_the_end_tokens():
    logits = np.array([0.0, 9.0, 8.0, 1.0], np.float32)
    greedy = SamplingParams(temperature=0, ignore_eos=True, logit_bias={1: 5.0})
    assert Sampler(greedy, 4, end_tokens=[1, 2]).sample(logits).token == 3
    heeding = SamplingParams(temperature=0)
    assert Sampler(heeding, 4, end_tokens=[1, 2]).sample(logits).token == 1


def test_a_bias_shifts_the_odds():
    params = SamplingParams(seed=12, logit_bias={0: math.log(3)}, **RAW)
    check_frequencies(draws(params, np.zeros(2, np.float32), 3000), np.array([0.75, 0.25]))


def test_dry_breakers_reach_the_chain():
    params = SamplingParams(temperature=0, dry_multiplier=5.0)
    logits = np.array([0.0, 0.0, 1.0, 0.5], np.float32)
    for breakers, expected in (((), 3), (((2,),), 2)):
        sampler = Sampler(params, 4, dry_breakers=breakers)
        sampler.accept_prompt([0, 1, 2, 0, 1])
        assert sampler.sample(logits).token == expected


@pytest.mark.parametrize("n", [0, 1, 5, 1000])
def test_logprobs_are_the_models_own(n):
    logits = np.random.default_rng(2).normal(100, 3, 400).astype(np.float32)
    params = SamplingParams(seed=1, logprobs=n, top_k=3, logit_bias={7: 100.0}, temperature=0.1)
    result = Sampler(params, 400).sample(logits)
    exact = np.log(softmax(logits))
    assert result.token == 7
    assert result.logprob == pytest.approx(exact[7], abs=1e-5)
    order = np.argsort(-logits, kind="stable")[:n]
    assert [token for token, _ in result.top_logprobs] == order.tolist()
    np.testing.assert_allclose([value for _, value in result.top_logprobs], exact[order], atol=1e-5)


def test_logprobs_are_left_out_unless_asked_for():
    result = Sampler(SamplingParams(), 4).sample(np.zeros(4, np.float32))
    assert (result.logprob, result.top_logprobs) == (None, ())


def test_a_prompt_may_be_an_array_and_stays_inside_the_vocabulary():
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=2.0), 4)
    sampler.accept_prompt(np.array([3, 2], np.int32))
    sampler.accept_prompt([])
    assert sampler.sample(np.array([0, 0.5, 1, 1.5], np.float32)).token == 1
    for token in (-1, 4):
        with pytest.raises(ValueError, match="outside the vocabulary of 4"):
            sampler.accept(token)


# -- refusals


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_vocabulary_that_is_banned_entirely_is_refused(temperature):
    sampler = Sampler(SamplingParams(temperature=temperature, logit_bias={0: -math.inf}), 2)
    with pytest.raises(RequestError, match=r"^no token can be sampled: "):
        sampler.sample(np.zeros(2, np.float32), Mask(np.array([True, False])))


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_refused(value, temperature):
    logits = np.zeros(5000, np.float32)
    logits[4321] = value
    for extra in ({}, {"presence_penalty": 1.0}, {"top_k": 0, "top_p": 1.0}):
        sampler = Sampler(SamplingParams(temperature=temperature, **extra), 5000)
        with pytest.raises(ModelError, match=r"^the model's largest logit is "):
            sampler.sample(logits)


def test_a_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match="names token 9: the vocabulary has tokens 0 to 4"):
        Sampler(SamplingParams(logit_bias={9: 1.0}), 5)


@pytest.mark.parametrize(
    "logits", [np.zeros(4, np.float64), np.zeros(5, np.float32), np.zeros((1, 4), np.float32)]
)
def test_logits_of_another_shape_are_a_mistake(logits):
    with pytest.raises(ValueError, match=r"not \[4\]"):
        Sampler(SamplingParams(), 4).sample(logits)


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_any_valid_request_samples_an_allowed_token(data):
    share = st.floats(0, 1)
    params = SamplingParams(
        seed=data.draw(st.integers(0, 9)),
        temperature=data.draw(st.sampled_from([0, 1e-6, 0.5, 1, 100, 1e6])),
        top_k=data.draw(st.integers(-1, 70)),
        top_p=data.draw(share),
        min_p=data.draw(share),
        typical_p=data.draw(share),
        top_n_sigma=data.draw(st.floats(-1, 4)),
        xtc_probability=data.draw(share),
        xtc_threshold=data.draw(share),
        mirostat=data.draw(st.sampled_from([0, 2])),
        mirostat_tau=data.draw(st.floats(0, 20)),
        repeat_penalty=data.draw(st.sampled_from([0.001, 1, 1.5, 1000])),
        repeat_last_n=data.draw(st.integers(-1, 8)),
        presence_penalty=data.draw(st.sampled_from([-1e6, 0, 2, 1e6])),
        dry_multiplier=data.draw(st.sampled_from([0, 0.8, 1e6])),
        dry_base=data.draw(st.sampled_from([0, 1, 1.75, 1e6])),
        dry_allowed_length=data.draw(st.integers(0, 3)),
        dry_penalty_last_n=data.draw(st.integers(-1, 8)),
        min_keep=data.draw(st.integers(0, 70)),
        samplers=data.draw(st.permutations(SamplingParams().samplers)),
        logprobs=data.draw(st.sampled_from([None, 2])),
    )
    n = data.draw(st.integers(1, 60))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    logits = random.normal(0, data.draw(st.sampled_from([0, 1, 50, 1e4])), n).astype(np.float32)
    allowed = random.random(n) < 0.5
    allowed[random.integers(0, n)] = True
    sampler = Sampler(params, n, dry_breakers=[(0,)])
    sampler.accept_prompt(random.integers(0, n, 12).tolist())
    for _ in range(4):
        token = sampler.sample(logits, Mask(allowed)).token
        assert allowed[token]
        sampler.accept(token)


# -- several rows at once


def mixed(rng):
    """Return settings of samplers, some of which are sampled together."""
    return {
        "temperature": rng.choice([0.0, 0.0, 0.4, 0.8, 1.0, 1.7]),
        "top_k": rng.choice([0, 1, 5, 40, 200]),
        "top_p": rng.choice([0.3, 0.9, 0.95, 1.0]),
        "min_p": rng.choice([0.0, 0.05, 0.5]),
        "min_keep": rng.choice([0, 0, 3]),
        "typical_p": rng.choice([1.0, 1.0, 1.0, 0.9]),
        "repeat_penalty": rng.choice([1.0, 1.0, 1.0, 1.3]),
        "ignore_eos": rng.choice([False, True]),
        "logprobs": rng.choice([None, None, 2]),
        "samplers": rng.choice(
            [DEFAULT_SAMPLERS, DEFAULT_SAMPLERS, ("top_k", "temperature", "min_p"), ("top_k",)]
        ),
    }


@pytest.mark.parametrize("seed", range(20))
def test_rows_sampled_together_get_the_tokens_that_each_gets_alone(seed):
    rng = random.Random(seed)
    n = rng.choice([30, 3000])
    logits = np.random.default_rng(seed).normal(0, 3, (9, n)).astype(np.float32)
    logits[2, 5] = logits[2].max()  # the lower id wins a tie
    settings = [SamplingParams(seed=i, **mixed(rng)) for i in range(9)]
    masks = [rng.choice([None, None, rng_mask(seed + i, n)]) for i in range(9)]
    pairs = [[Sampler(p, n, end_tokens=[5, 8]) for p in settings] for _ in range(2)]
    for _ in range(6):
        together = sample_rows(pairs[0], logits, masks)
        alone = [s.sample(r, m) for s, r, m in zip(pairs[1], logits, masks, strict=True)]
        assert together == alone
        for samplers in pairs:
            for sampler, sampled in zip(samplers, alone, strict=True):
                sampler.accept(sampled.token)


def rng_mask(seed, n):
    allowed = np.random.default_rng(seed).random(n) < 0.3
    allowed[11] = True
    return Mask(allowed)


def test_the_common_chain_equals_its_samplers_one_by_one():
    rng = random.Random(0)
    for seed in range(200):
        row = np.random.default_rng(seed).normal(0, 3, 500).astype(np.float32)
        p = SamplingParams(
            top_k=rng.choice([1, 7, 60]), top_p=rng.choice([0.2, 0.8, 1.0]),
            min_p=rng.choice([0.0, 0.01, 0.3]), temperature=rng.choice([0.5, 1.0, 2.0]),
            min_keep=rng.choice([0, 4]),
        )  # fmt: skip
        chain = CommonChain.of(
            p, [n for n in ORDER if getattr(p, n) != {"top_k": 0, "min_p": 0}.get(n, 1)]
        )
        assert chain is not None
        left = truncation.top_k(Candidates(row), p.top_k)
        left = truncation.top_p(left, p.top_p, p.min_keep)
        left = truncation.min_p(left, p.min_p, p.min_keep)
        left = truncation.temperature(left, p.temperature)
        drawn = sample_common([chain] * 50, [Candidates(row)] * 50, [Draw(5, i) for i in range(50)])
        assert drawn == [left.token(draw_position(left, Draw(5, i))) for i in range(50)]


def test_a_row_without_finite_logits_fails_alone():
    logits = np.zeros((6, 50), np.float32)
    logits[:, 7] = 1
    logits[1, 3] = np.nan
    logits[2] = -np.inf
    logits[3, 3] = np.nan
    for params in (SamplingParams(temperature=0), SamplingParams(seed=1, top_k=1)):
        samplers = [Sampler(params, 50) for _ in range(6)]
        found = sample_rows(samplers, logits, [None] * 6)
        kinds = [int, ModelError, RequestError, ModelError, int, int]
        for each, kind in zip(found, kinds, strict=True):
            assert each.token == 7 if kind is int else isinstance(each, kind)
    assert sample_rows([], logits[:0], []) == []


# -- probabilities after sampling


def test_probabilities_after_sampling_are_those_that_were_sampled():
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.03, 0.02], np.float32))
    params = SamplingParams(
        seed=6,
        top_k=5,
        top_p=0.9,
        min_p=0.3,
        temperature=1.0,
        logprobs=10,
        post_sampling_probs=True,
    )
    expected = {0: 0.4 / 0.85, 1: 0.3 / 0.85, 2: 0.15 / 0.85}
    sampler = Sampler(params, 6)
    for _ in range(20):
        found = sampler.sample(logits)
        sampler.accept(found.token)
        top = {token: math.exp(logprob) for token, logprob in found.top_logprobs}
        assert list(top) == [0, 1, 2]
        assert top == pytest.approx(expected)
        assert found.logprob == dict(found.top_logprobs)[found.token]


def test_probabilities_after_sampling_change_no_token():
    rng = np.random.default_rng(8)
    for seed in range(40):
        logits = rng.normal(0, 3, 300).astype(np.float32)
        settings_ = {
            "seed": seed,
            "temperature": float(rng.choice([0.0, 0.7, 1.3])),
            "top_k": int(rng.choice([0, 5, 40])),
            "mirostat": int(rng.choice([0, 2])),
            "xtc_probability": float(rng.choice([0, 0.5])),
        }
        plain = Sampler(SamplingParams(**settings_), 300)
        asked = Sampler(SamplingParams(**settings_, logprobs=3, post_sampling_probs=True), 300)
        for _ in range(5):
            found = asked.sample(logits)
            assert found.token == plain.sample(logits).token
            for sampler in (asked, plain):
                sampler.accept(found.token)
            assert len(found.top_logprobs) <= 3
            assert found.logprob is not None
            assert sum(math.exp(p) for _, p in found.top_logprobs) <= 1 + 1e-6


def test_a_token_without_alternatives_has_probability_one():
    logits = np.array([1.0, 2.0, 1000.0, 3.0], np.float32)
    for settings_ in ({"temperature": 0.0}, {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0}):
        params = SamplingParams(logprobs=4, post_sampling_probs=True, **settings_)
        found = Sampler(params, 4).sample(logits)
        assert (found.token, found.logprob) == (2, 0)
        assert found.top_logprobs == ((2, 0.0),)
