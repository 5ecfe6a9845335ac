"""How many tokens a drafter of chains drafts."""

from __future__ import annotations

import pytest

from zinc.engine.speculative.chain_policy import ChainPolicy
from zinc.engine.speculative.step_times import StepTimes

RATES = (0.7, 0.65, 0.6, 0.55)


def policy(step=0.02, ratio=0.05, unit_s=0.1, **ratios):
    times = StepTimes(lambda rows: 1 + step * (rows - 1))
    times.unit_s = unit_s
    found = ChainPolicy(times, RATES, 0.2, **ratios)
    for _ in range(5):
        found.took(ratio * unit_s, 1)
    return found


def test_cheap_drafts_are_long_and_dear_ones_are_not_made():
    assert policy(step=0.01, ratio=0.02).depth(1, 1) == 4
    assert policy(step=0.02, ratio=0.3).depth(1, 1) in (1, 2)
    assert policy(step=0.3, ratio=0.6).depth(1, 1) == 0


def test_a_delayed_draft_step_changes_nothing():
    found = policy(step=0.01, ratio=0.02)
    assert found.took(0.1, 2) == pytest.approx(2 * 0.02 * 0.1)
    assert found.depth(1, 1) == 4


def test_acceptance_changes_the_depth():
    found = policy(ratio=0.15)
    before = found.expected(3)
    for _ in range(200):
        found.record(0, accepted=False)
    assert found.depth(1, 1) == 0
    assert found.expected(3) < 0.1 * before


def test_without_a_gain_it_is_tried_now_and_then():
    found = policy(step=0.3, ratio=0.6)
    depths = [found.depth(1, 1) for _ in range(96)]
    assert depths.count(1) == 3
    for _ in range(31):
        assert not found.is_due
        found.skipped()
    assert found.is_due
    assert found.depth(1, 1) == 1
    assert not found.is_due
    assert [found.wants() for _ in range(32)].count(True) == 2
    assert all(policy().wants() for _ in range(3))


def test_the_expected_tokens_are_those_of_a_chain():
    found = policy()
    a, b = found._rates[:2]
    assert found.expected(2) == pytest.approx(a + a * b)
    assert found.expected(0) == 0


def test_longer_chains_are_drafted_where_the_drafter_has_rates_for_them():
    times = StepTimes(lambda rows: 1.0)
    assert ChainPolicy(times, (0.9,) * 8, 0.02).depth(1, 1) == 8


def test_a_long_text_is_read_when_the_answer_repays_it():
    found = policy(step=0.01, ratio=0.02, read_ratio=0.05)
    assert found.repays(0, 0)
    assert not found.repays(1, 1000)
    assert found.repays(1000, 1000)
    dear = policy(step=0.01, ratio=0.02, read_ratio=0.05)
    for _ in range(20):
        dear.has_read(128, 128 * 0.1)  # a step of the model for each token
    assert not dear.repays(100, 200)


def test_a_text_that_is_read_to_probe_costs_little():
    found = policy(step=0.3, ratio=0.6, read_ratio=0.1)
    assert not found.pays(1, 1)
    assert not found.repays(100, 100)
    assert found.repays(100, 40)
