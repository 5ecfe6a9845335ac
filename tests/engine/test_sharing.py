"""Prompts that begin alike and arrive together: run once, with separate answers."""

from __future__ import annotations

import pytest
from fake import END, KINDS, alone
from test_engine import ENDS, check_idle, engine, finish, greedy, prompt

from zinc.engine.request import Request


@pytest.mark.parametrize("clients", ["aaaaaaaa", "abcdefgh"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_prompt_eight_times_is_run_once(kind, clients):
    e = engine(kind, n_blocks=400, slots=16)
    ids = prompt(150)
    sequences = [e.submit(Request(ids, greedy(20), ENDS, client=client)) for client in clients]
    finish(e, *sequences)
    n_answers = sum(s.n_generated - 1 for s in sequences)
    assert e.program.n_run - n_answers == 150 + 7  # each runs its last token to get logits
    assert [s.n_cached for s in sequences] == [0] + [149] * 7
    assert {tuple(s.ids) for s in sequences} == {tuple(alone(kind, ids, 20, ENDS))}
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_two_namespaces_share_nothing(kind):
    """Each namespace runs the prompt once, both at the same time and later."""
    e = engine(kind, n_blocks=400, slots=16)
    ids = prompt(150)
    together = [
        e.submit(Request(ids, greedy(5), ENDS, namespace=each)) for each in (b"a", b"", b"a", b"b")
    ]
    finish(e, *together)
    assert [s.n_cached for s in together] == [0, 0, 149, 0]
    later = []
    for namespace in (b"b", b"c"):
        later.append(e.submit(Request(ids, greedy(5), ENDS, namespace=namespace)))
        finish(e, later[-1])
    assert [s.n_cached for s in later] == [149, 0]
    assert {tuple(s.ids) for s in (*together, *later)} == {tuple(alone(kind, ids, 5, ENDS))}
    check_idle(e)


@pytest.mark.parametrize("kind", KINDS)
def test_a_common_beginning_is_run_once(kind):
    """Agents with one system prompt; the others continue as soon as it has run."""
    e = engine(kind, n_blocks=400, slots=16)
    stem = [*prompt(120), END]
    prompts = [[*stem, *prompt(100 - 10 * i, seed=i + 1)] for i in range(4)]
    sequences = [
        e.submit(Request(p, greedy(5), ENDS, client=str(i))) for i, p in enumerate(prompts)
    ]
    e.step()
    assert [s.is_running for s in sequences] == [True, False, False, False]
    while not sequences[1].is_running:
        e.step()
    assert sequences[0].n_run < len(prompts[0])
    finish(e, *sequences)
    n_answers = sum(s.n_generated - 1 for s in sequences)
    assert e.program.n_run - n_answers <= sum(map(len, prompts)) - 3 * 120
    for s, ids in zip(sequences, prompts, strict=True):
        assert s.ids == alone(kind, ids, 5, ENDS)
    check_idle(e)


def test_a_request_that_arrives_while_its_prompt_runs_waits():
    e = engine(n_blocks=100)
    first = e.submit(Request(prompt(150), greedy(5), ENDS))
    e.step()
    second, other = (
        e.submit(Request(prompt(150), greedy(5), ENDS)),
        e.submit(Request(prompt(40, 5), greedy(5), ENDS)),
    )
    while first.pending > 1:
        assert not second.is_running
        e.step()
    finish(e, first, second, other)
    assert (first.n_cached, second.n_cached, other.n_cached) == (0, 149, 0)


@pytest.mark.parametrize("kind", ["full", "recurrent"])
def test_when_the_first_is_cancelled_another_takes_its_place(kind):
    e = engine(kind, n_blocks=100, slots=10)
    sequences = [e.submit(Request(prompt(150), greedy(5), ENDS)) for _ in range(3)]
    for _ in range(3):
        e.step()
    assert sequences[0].n_run == 72
    e.cancel(sequences[0])
    finish(e, *sequences)
    assert e.program.n_run == 150 + 1 + 2 * 4
    for s in sequences[1:]:
        assert s.ids == alone(kind, prompt(150), 5, ENDS)
    check_idle(e)


def test_no_request_waits_for_a_lower_priority():
    e = engine(n_blocks=100)
    low = e.submit(Request(prompt(150), greedy(5), ENDS))
    e.step()
    high = e.submit(Request(prompt(150), greedy(5), ENDS, priority=1))
    e.step()
    assert high.is_running
    finish(e, low, high)


def test_without_the_prefix_cache_no_request_waits():
    e = engine(n_blocks=100, prefix_cache=False)
    sequences = [e.submit(Request(prompt(30), greedy(5), ENDS)) for _ in range(3)]
    for _ in range(4):
        e.step()
    assert all(s.is_running for s in sequences)
    finish(e, *sequences)


def test_no_request_waits_for_few_tokens():
    e = engine(n_blocks=100)
    sequences = [e.submit(Request([*prompt(7), *prompt(20, i)], greedy(5), ENDS)) for i in range(2)]
    e.step()
    e.step()
    assert all(s.is_running for s in sequences)
    finish(e, *sequences)
