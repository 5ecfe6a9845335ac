"""Tokens that are not sampled: end markers of reasoning, and tokens of a constraint."""

from __future__ import annotations

import pytest
from fake import KINDS, VOCAB, alone, model
from hypothesis import given, settings
from hypothesis import strategies as st

from zinc.core.errors import RequestError
from zinc.engine.constraint import Thinking, ThinkingTracker
from zinc.engine.engine import Engine
from zinc.engine.request import Request
from zinc.engine.sampling import SamplingParams

START, CLOSE = (90, 91), (92, 93, 94)


def run(ids, thinking, n=30):
    program, cache = model("everything", 64)
    engine = Engine(program, cache, VOCAB, 400)
    s = engine.submit(
        Request(ids, SamplingParams(temperature=0, max_tokens=n), (), thinking=thinking)
    )
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
def test_an_exhausted_budget_closes_the_reasoning_and_the_answer_follows(budget):
    ids = [1, 2, *START]
    s = run(ids, Thinking.after(ids, START, CLOSE, budget))
    free = alone("everything", ids, budget)
    assert s.ids[: len(free) + 3] == [*free, *CLOSE]
    assert s.ids == alone("everything", s.ids[: len(free) + 3], 30 - budget - 3)
    assert len(s.sampled) == s.n_generated == 30
    assert [x.token for x in s.sampled] == s.generated
    assert s.clock.first_token >= s.clock.started > 0


def test_without_a_budget_or_reasoning_no_marker_is_added():
    ids = [1, 2, *START]
    assert run(ids, Thinking.after(ids, START, CLOSE)).ids == alone("everything", ids, 30)
    assert run([1, 2], Thinking.after([1, 2], START, CLOSE, 3)).ids == alone(
        "everything", [1, 2], 30
    )


def test_an_answer_that_opens_reasoning_begins_with_the_marker():
    thinking = Thinking.after([1, 2], START, CLOSE, 4, opens=True)
    s = run([1, 2], thinking)
    free = alone("everything", [1, 2, *START], 4)
    assert s.ids[: len(free) + 3] == [*free, *CLOSE]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_marker_never_exceeds_max_tokens(n):
    ids = [1, 2, *START]
    s = run(ids, Thinking.after(ids, START, CLOSE, 1), n)
    assert s.n_generated == n
    assert s.finish_reason == "length"
    assert s.generated[1:] == list(CLOSE[: n - 1])


@settings(deadline=None)
@given(st.lists(st.sampled_from([7, 90, 91, 92, 93, 94]), max_size=40), st.integers(0, 6))
def test_a_partial_marker_is_completed_once(tokens, budget):
    """The added and the sampled tokens form one end marker, within the budget."""
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


# -- tokens that a constraint forces


class Form:
    """A constraint that dictates tokens after given positions.

    end: the number of tokens that complete the answer. wrong: a token that it refuses.
    """

    def __init__(self, dictated, end=None, wrong=None):
        self.dictated, self.end, self.wrong, self.taken = dictated, end, wrong, []

    def forced(self):
        n, rest = len(self.taken), ()
        for start, tokens in self.dictated.items():
            if start <= n < start + len(tokens):
                rest = tokens[n - start :]
        return rest

    def allows(self, token):
        return not self.forced() or token == self.forced()[0]

    def mask(self):
        return None

    def accept(self, token):
        if token == self.wrong:
            raise RequestError("the token does not follow", "")
        assert self.allows(token)
        self.taken.append(token)

    @property
    def finished(self):
        return len(self.taken) == self.end


def held(kind, ids, form, n, context=400, **params):
    program, cache = model(kind, 64)
    engine = Engine(program, cache, VOCAB, context)
    settings = SamplingParams(temperature=0, max_tokens=n, **params)
    s = engine.submit(Request(ids, settings, (), constraint=form))
    while s.finish_reason is None:
        engine.step()
    engine.pool.check()
    assert engine.idle
    return s, program


DICTATED = {0: (5, 6, 7), 5: tuple(range(20, 30)), 15: (8,)}


def answer_with(kind, ids, dictated, n):
    """Return the answer by definition: dictated tokens, and elsewhere the model's own."""
    ids, n_prompt = list(ids), len(ids)
    while (at := len(ids) - n_prompt) < n:
        ids = [*ids, *dictated[at]] if at in dictated else alone(kind, ids, 1)
    return ids[n_prompt : n_prompt + n]


@pytest.mark.parametrize("kind", KINDS)
def test_dictated_tokens_run_in_one_step_and_the_answer_continues(kind):
    s, program = held(kind, [1, 2, 3], Form(DICTATED), 40)
    assert s.generated == answer_with(kind, [1, 2, 3], DICTATED, 40)
    assert s.generated == s.request.constraint.taken
    # The prompt with its dictated start; a token with dictated ones after it; single tokens.
    assert program.sizes[:4] == [[6], [1], [12], [1]]
    assert sum(map(sum, program.sizes)) == 3 + 40 - 1


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_equal_those_of_tokens_run_one_by_one(kind):
    s, program = held(kind, [1, 2, 3], Form(DICTATED), 40, logprobs=0)
    assert s.generated == answer_with(kind, [1, 2, 3], DICTATED, 40)
    assert all(t.logprob is not None for t in s.sampled)
    assert program.sizes == [[3]] + [[1]] * 39


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 15])
def test_dictated_tokens_never_exceed_max_tokens(n):
    s, _ = held("everything", [1, 2], Form(DICTATED), n)
    assert s.generated == answer_with("everything", [1, 2], DICTATED, n)
    assert s.finish_reason == "length"


@pytest.mark.parametrize("end", [2, 3, 8, 12, 15])
def test_an_answer_may_end_with_dictated_tokens(end):
    dictated = {0: (5, 6, 7)[:end], 5: tuple(range(20, 30))[: max(0, end - 5)]}
    s, program = held("full", [1, 2], Form(dictated, end), 40)
    assert (s.finish_reason, s.n_generated) == ("stop", end)
    assert bool(program.sizes) == (end > 3)  # if every token is dictated, no step runs


def test_refused_dictated_tokens_fail_their_request():
    program, cache = model("full", 64)
    engine = Engine(program, cache, VOCAB, 400)
    with pytest.raises(RequestError, match="does not follow"):
        engine.submit(Request([1], SamplingParams(), (), constraint=Form(DICTATED, wrong=6)))
    assert engine.idle
    s, _ = held("full", [1], Form({1: (5, 6)}, wrong=6), 9)
    assert s.finish_reason == "error"
    assert isinstance(s.error, RequestError)


def test_other_streams_get_one_token_a_step_beside_dictated_tokens():
    program, cache = model("everything", 64)
    engine = Engine(program, cache, VOCAB, 400)
    params = SamplingParams(temperature=0, max_tokens=30)
    form = {k: tuple(range(3)) for k in range(2, 30, 6)}
    others = [engine.submit(Request([7, i], params)) for i in range(2)]
    s = engine.submit(Request([1, 2], params, constraint=Form(form)))
    while not engine.idle:
        engine.step()
    assert s.generated == answer_with("everything", [1, 2], form, 30)
    for i, other in enumerate(others):
        assert other.ids == alone("everything", [7, i], 30)
    assert max(map(sum, program.sizes[1:])) == 6
