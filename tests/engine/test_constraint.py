"""Thinking budgets: the trace is closed by the model's own marker, and the answer goes on."""

from __future__ import annotations

import pytest
from fake import VOCAB, alone, model
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.engine.constraint import Thinking, ThinkingTracker
from zinc.engine.engine import Engine
from zinc.engine.sampling import SamplingParams

START, CLOSE = (90, 91), (92, 93, 94)


def run(ids, thinking, n=30):
    program, cache = model("everything", 64)
    engine = Engine(program, cache, VOCAB, 400)
    s = engine.submit(ids, SamplingParams(temperature=0, max_tokens=n), (), thinking=thinking)
    while s.finish_reason is None:
        engine.step()
    engine.pool.check()
    return s


def test_the_prompt_says_whether_reasoning_is_open():
    assert Thinking.after([1, *START, 5], START, CLOSE).inside
    assert not Thinking.after([1, *START, 5, *CLOSE, 6], START, CLOSE).inside
    assert Thinking.after([*START, *CLOSE, *START], START, CLOSE).inside
    assert not Thinking.after([1, 2], START, CLOSE).inside
    assert not Thinking.after([], START, CLOSE).inside


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_that_is_used_up_closes_the_trace_and_goes_on(budget):
    ids = [1, 2, *START]
    s = run(ids, Thinking.after(ids, START, CLOSE, budget))
    free = alone("everything", ids, budget)
    assert s.ids[: len(free) + 3] == [*free, *CLOSE]
    assert s.ids == alone("everything", s.ids[: len(free) + 3], 30 - budget - 3)
    assert len(s.sampled) == s.n_generated == 30
    assert [x.token for x in s.sampled] == s.generated
    assert s.first_token >= s.started > 0


def test_without_a_budget_or_a_trace_nothing_is_put_in():
    ids = [1, 2, *START]
    assert run(ids, Thinking.after(ids, START, CLOSE)).ids == alone("everything", ids, 30)
    assert run([1, 2], Thinking.after([1, 2], START, CLOSE, 3)).ids == alone(
        "everything", [1, 2], 30
    )


def test_an_answer_that_opens_begins_with_the_marker():
    thinking = Thinking.after([1, 2], START, CLOSE, 4, opens=True)
    s = run([1, 2], thinking)
    free = alone("everything", [1, 2, *START], 4)
    assert s.ids[: len(free) + 3] == [*free, *CLOSE]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_marker_never_exceeds_the_tokens_asked_for(n):
    ids = [1, 2, *START]
    s = run(ids, Thinking.after(ids, START, CLOSE, 1), n)
    assert s.n_generated == n
    assert s.finish_reason == "length"
    assert s.generated[1:] == list(CLOSE[: n - 1])


@settings(deadline=None)
@given(st.lists(st.sampled_from([7, 90, 91, 92, 93, 94]), max_size=40), st.integers(0, 6))
def test_the_marker_is_completed_and_put_in_once(tokens, budget):
    """Whatever comes, what is put in and what was there make one end marker, within the budget."""
    tracker = ThinkingTracker(Thinking(START, CLOSE, inside=True, budget_tokens=budget))
    seen = []
    for token in tokens:
        forced = tracker.forced()
        if forced:
            assert tracker.n_tokens >= budget
            assert forced == CLOSE[len(CLOSE) - len(forced) :]
            assert tuple([*seen, *forced][-3:]) == CLOSE
            for each in forced:
                assert tracker.inside
                tracker.accept(each)
            assert not tracker.inside
            return
        tracker.accept(token)
        seen.append(token)
        assert tracker.n_tokens <= budget or not tracker.inside
        if not tracker.inside:
            return
