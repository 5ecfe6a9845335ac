"""Tokens that a device draws: those of the host's chain for the same seed and index, and as often
as they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_emulator import emulated
from ops.running import run
from present import computing

from zinc.backends import api
from zinc.engine.load.self_test import BLOCK_TOKENS, bind_case
from zinc.engine.sampling import Sampler, SamplingParams
from zinc.engine.sampling.candidates import Candidates
from zinc.engine.sampling.common_chain import CommonChain, sample_common
from zinc.ops.cases import Case
from zinc.ops.noise import Draw
from zinc.ops.penalties import RowPenalties, StepPenalties
from zinc.ops.sampling import pack_sample_params, sampling_step
from zinc.ops.step import SampleParams
from zinc.plan.planner import make_plan

DRAWING = ["ref", *(name for name in computing() if api.kernels(name).supports("sample"))]
ROWS = [(name, n_vocab) for name in DRAWING for n_vocab in (300, 9000)]
if emulated.COMPILER is not None:
    ROWS.append(("emulated", 300))
EVERYWHERE = list(dict.fromkeys(name for name, _ in ROWS))
CHI_SQUARE_999_7 = 24.32  # 0.999 quantile, 7 degrees of freedom


def drawn(name, logits, draws):
    """(tokens, largest logits) of rows."""
    penalties = StepPenalties.of([draw.penalties for draw in draws])
    case = Case("draw", len(logits), sample_params=pack_sample_params(draws), penalties=penalties)
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


def operation_by_operation(logit, count, repeat, presence, frequency):
    """The logit of a penalised token in float32, which numpy rounds after each operation."""
    repeat, presence, frequency = map(np.float32, (repeat, presence, frequency))
    scaled = logit * repeat if logit <= 0 else logit / repeat
    return scaled - (np.float32(count) * frequency + presence)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_penalised_logits_are_those_of_the_host_to_the_last_bit(name):
    """Each row has one token, so its largest logit is that token's."""
    rng = np.random.default_rng(2)
    n = 2000 if name != "emulated" else 300
    logits = (10 ** rng.uniform(-3, 3, n) * rng.choice([-1, 1], n)).astype(np.float32)
    logits[:3] = 0.0, -0.0, 1.0
    settings = np.stack(
        [10 ** rng.uniform(-3, 3, n), rng.uniform(-3, 3, n), rng.uniform(-2, 2, n)], axis=1
    ).astype(np.float32)
    settings[::5, 0], settings[::7, 1:] = 1.0, 0.0
    counts = rng.integers(1, 300, n)
    rows = np.full((n, 8), -np.inf, np.float32)
    rows[:, 6] = logits
    draws = [
        SampleParams(1, penalties=RowPenalties(*map(float, s), np.array([[6, c]], np.uint32)))
        for s, c in zip(settings, counts, strict=True)
    ]
    wanted = [operation_by_operation(*x) for x in zip(logits, counts, *settings.T, strict=True)]
    tokens, peaks = drawn(name, rows, draws)
    assert set(tokens) == {6}
    assert peaks.tolist() == np.array(wanted, np.float32).tolist()


PENALTIES = [
    {"presence_penalty": 4.0, "repeat_last_n": 1},
    {"presence_penalty": 4.0, "repeat_last_n": 2, "temperature": 0},
    {"frequency_penalty": 0.4, "repeat_last_n": 64, "temperature": 0},
    {"repeat_penalty": 1.2, "presence_penalty": 1.5, "frequency_penalty": 0.1, "top_k": 20},
    {"repeat_penalty": 0.9, "frequency_penalty": -0.2, "repeat_last_n": -1, "temperature": 1.5},
    {},
    {"presence_penalty": 1.0, "repeat_last_n": -1, "temperature": 0, "ignore_eos": True},
]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_step_ahead_counts_the_token_that_the_host_does_not_know(name):
    """The logits of a token are its row of a table, whose best are the token and a few others.

    Rows change their places in each step.
    """
    rng = np.random.default_rng(8)
    n, vocab, n_steps = len(PENALTIES), 60, 40
    table = rng.standard_normal((vocab, vocab)).astype(np.float32)
    table[:, :4] += 4
    table += 2 * np.eye(vocab, dtype=np.float32)
    prompts = [rng.integers(0, vocab, 5).tolist() for _ in range(n)]
    samplers, on_host = (
        [
            Sampler(SamplingParams(seed=i, **x), vocab, end_tokens=[7])
            for i, x in enumerate(PENALTIES)
        ]
        for _ in range(2)
    )
    for sampler, ids in zip((*samplers, *on_host), 2 * prompts, strict=True):
        sampler.accept_prompt(ids)

    case = Case("ahead", n)
    case.returns(case.graph.select_rows(case.graph.embed(case.given(table))))
    backend = emulated.backend() if name == "emulated" else api.create(name)
    plan = make_plan(case.graph, backend, max_tokens=n, max_outputs=n, samples=True)
    step = replace(case.step(BLOCK_TOKENS), ids=np.array([x[-1] for x in prompts], np.int32))
    program = bind_case(backend, case, plan, step)

    answers = [[] for _ in range(n)]
    order = list(range(n))  # the sequence of each row
    running = program.sample(sampling_step(step, [s.device_params() for s in samplers]))
    for _ in range(n_steps):
        moved = rng.permutation(n).tolist()
        behind = [samplers[order[row]].device_params(behind=True) for row in moved]
        ahead = replace(step, sampled_rows=np.array(moved, np.int32))
        following = program.sample(sampling_step(ahead, behind))
        for i, (token, _) in zip(order, running.tokens().tolist(), strict=True):
            samplers[i].accept(int(token))
            answers[i].append(int(token))
        running, order = following, [order[row] for row in moved]
    for sampler, ids, answer in zip(on_host, prompts, answers, strict=True):
        wanted, last = [], ids[-1]
        for _ in range(n_steps):
            last = sampler.sample(table[last]).token
            sampler.accept(last)
            wanted.append(last)
        assert answer == wanted


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
        ({"repeat_penalty": 1.1}, True),
        ({"temperature": 0, "presence_penalty": 0.5}, True),
        ({"frequency_penalty": 0.5, "repeat_last_n": -1, "ignore_eos": True}, True),
        ({"presence_penalty": 0.5, "top_k": 65}, False),
        ({"presence_penalty": 0.5, "logprobs": 0}, False),
        ({"presence_penalty": 0.5, "mirostat": 2}, False),
        ({"presence_penalty": 0.5, "dry_multiplier": 0.8}, False),
        ({"presence_penalty": 0.5, "dry_multiplier": 0.8, "temperature": 0}, False),
        ({"presence_penalty": 0.5, "samplers": ("top_k", "penalties", "temperature")}, False),
        ({"presence_penalty": 0.5, "samplers": ("dry", "penalties", "top_k")}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, True),
        ({"dry_multiplier": 0.8}, False),
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
