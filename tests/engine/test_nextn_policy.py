"""How many tokens a NextN block drafts."""

from __future__ import annotations

import pytest

from zinc.engine.speculative.nextn_policy import NextNPolicy
from zinc.engine.speculative.step_times import StepTimes


def policy(step=0.02, ratio=0.05, unit_s=0.1):
    times = StepTimes(lambda rows: 1 + step * (rows - 1))
    times.unit_s = unit_s
    found = NextNPolicy(times)
    for _ in range(5):
        found.took(ratio * unit_s, 1)
    return found


def test_cheap_drafts_are_long_and_dear_ones_are_not_made():
    assert policy(step=0.01, ratio=0.02).depth(1, 1) == 4
    assert policy(step=0.02, ratio=0.3).depth(1, 1) in (1, 2)
    assert policy(step=0.3, ratio=0.6).depth(1, 1) == 0


def test_the_first_draft_step_is_not_measured():
    found = policy(ratio=0.05)
    late = NextNPolicy(StepTimes(lambda rows: 1.0))
    late._times.unit_s = 0.1
    late.took(10.0, 1)
    assert late._step_ratio == NextNPolicy(late._times)._step_ratio != found._step_ratio


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
    assert [found.wants() for _ in range(32)].count(True) == 2
    assert all(policy().wants() for _ in range(3))


def test_the_expected_tokens_are_those_of_a_chain():
    found = policy()
    a, b = found._rates[:2]
    assert found.expected(2) == pytest.approx(a + a * b)
    assert found.expected(0) == 0
